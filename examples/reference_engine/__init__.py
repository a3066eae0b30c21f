"""An engine that embeds the cache: `transformers` models over the library's pools, with continuous batching on one thread.

It is small enough to read in one sitting, and complete: page tables in, page tables out, nothing of a sequence is kept
anywhere else but the rows of compressed KV that have not filled an entry yet. The oracle runs on it. It gathers and scatters
rows where a real engine's kernels read pages in place, so it says nothing about speed.
"""

from reference_engine.engine import Engine
from reference_engine.engine_settings import EngineSettings
from reference_engine.layers import model_formats
from reference_engine.model_runner import ModelRunner
from reference_engine.request import Request
from reference_engine.sequence_rows import SequenceRows
from reference_engine.speculation import Speculation

__all__ = ["Engine", "EngineSettings", "ModelRunner", "Request", "SequenceRows", "Speculation", "model_formats"]
