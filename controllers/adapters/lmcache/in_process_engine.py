"""An LMCache engine in this process, made of LMCache's own parts, whose buffers hold chunks of device pages.

LMCache hashes tokens with Python's `hash` where no serving engine is installed: no digest, and another in each process. Its
engine takes any token database, and its own one makes keys of any hashes; so this hashes by SHA-256, and that makes the keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unified_tree.controllers.adapters.lmcache.lmcache_package import lmcache_module
from unified_tree.controllers.prefix_linker.linked_pool import format_digest
from unified_tree.terms.errors import ConfigurationError

if TYPE_CHECKING:
    import torch

    from unified_tree.controllers.adapters.lmcache.lmcache_settings import InProcessSettings
    from unified_tree.controllers.prefix_linker.linked_pool import LinkedPool
    from unified_tree.controllers.prefix_linker.prefix_linker import Span


class InProcessEngine:
    """Every call blocks until it is done; all come from one thread at a time.

    Args:
        pools: the device pools, all of one page size.
        settings: of the engine.

    Attributes:
        chunk_tokens: the engine's.

    Raises ConfigurationError for chunks that do not fit the pages, for an engine file that cannot be used, or without the
    package.
    """

    def __init__(self, pools: Sequence[LinkedPool], settings: InProcessSettings) -> None:
        engines = lmcache_module("lmcache.v1.cache_engine")
        config = _config(settings)
        self.chunk_tokens, page = int(config.chunk_size), pools[0].page_tokens
        if self.chunk_tokens % page:
            raise ConfigurationError(f"lmcache: chunks of {self.chunk_tokens} tokens are no multiple of the page size {page}")
        connector = lmcache_module("unified_tree.controllers.adapters.lmcache.page_connector").PageConnector(
            pools, self.chunk_tokens
        )
        self._torch = lmcache_module("torch")
        metadata = lmcache_module("lmcache.v1.metadata").LMCacheMetadata(
            model_name=f"{settings.model}-{format_digest(pools)}",
            world_size=1,
            local_world_size=1,
            worker_id=0,
            local_worker_id=0,
            kv_dtype=self._torch.uint8,
            kv_shape=(1, 2, self.chunk_tokens, 1, connector.half_token_bytes),
            chunk_size=self.chunk_tokens,
            role="worker",
        )
        database = lmcache_module("lmcache.v1.token_database").ChunkedTokenDatabase(config, metadata)
        with ExitStack() as undo:
            stats = lmcache_module("lmcache.observability").LMCacheStatsLogger(metadata, log_interval=10, config=config)
            undo.callback(stats.shutdown)  # it empties what the engine counts, which nothing else does
            keys = ChunkKeys(database, self.chunk_tokens)
            self._engine = engines.LMCacheEngine(config, metadata, keys, connector, _alone, _alone)
            undo.callback(self._close)
            self._engine.post_init()
            self._open = undo.pop_all()

    @property
    def is_healthy(self) -> bool:
        """Whether it says so."""
        return bool(self._engine.is_healthy())

    def lookup(self, name: str, tokens: list[int], salt: str) -> int:
        """How many of the first tokens are there; their chunks are locked under that name."""
        return int(self._engine.lookup(tokens, lookup_id=name, pin=True, request_configs=_tagged(salt))) if tokens else 0

    def unlock(self, name: str) -> None:
        """Release the locks of a lookup."""
        self._engine.lookup_unpin(name)

    def retrieve(self, name: str, span: Span) -> bool:
        """Fill a span's pages; whether all of it came."""
        begin = span.first_token(self.chunk_tokens)
        came = self._engine.retrieve(req_id=name, mask=self._from(begin, span.end), **_shared(span))
        return int(came.sum()) == span.end - begin

    def store(self, name: str, span: Span) -> None:
        """Copy a span's pages, in whole chunks."""
        self._engine.store(req_id=name, mask=self._from(span.begin, span.end), **_shared(span))

    def close(self) -> None:
        """Stop its threads and free its memory."""
        self._open.close()

    def _close(self) -> None:
        manager = self._engine.storage_manager
        self._engine.close()
        if manager is not None and not manager.loop.is_running():
            manager.loop.close()  # LMCache leaves it open, with its sockets, and has no call that closes it

    def _from(self, begin: int, end: int) -> Any:
        """A mask of the tokens from `begin` on."""
        mask = self._torch.ones(end, dtype=self._torch.bool)
        mask[:begin] = False
        return mask


def _config(settings: InProcessSettings) -> Any:
    """LMCache's settings. Raises ConfigurationError for a file that is not there, or holds something else."""
    configs = lmcache_module("lmcache.v1.config").LMCacheEngineConfig
    path = settings.engine_file
    if not path:
        memory_gib = settings.memory_bytes / (1 << 30)
        return configs.from_defaults(chunk_size=settings.chunk_tokens, local_cpu=True, max_local_cpu_size=memory_gib)
    yaml = lmcache_module("yaml")
    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ConfigurationError(f"lmcache: {path} must hold LMCache's settings by name, not a {type(content).__name__}")
        return configs.from_file(path)
    except (OSError, UnicodeDecodeError, ValueError, TypeError, yaml.YAMLError) as error:
        raise ConfigurationError(f"lmcache: the engine_file {path} cannot be used: {error}") from error


def _shared(span: Span) -> dict[str, Any]:
    """What a retrieve and a store are given alike; the connector gets the span."""
    return {"tokens": span.tokens[: span.end].tolist(), "request_configs": _tagged(span.salt), "span": span}


def _tagged(salt: str) -> dict[str, str]:
    """Part of LMCache's keys."""
    return {"lmcache.tag.salt": salt}


def _alone(thing: Any, _: int) -> Any:
    """What a rank without others is told by them."""
    return thing


class ChunkKeys:
    """A token database of an LMCache engine.

    Args:
        keys: LMCache's `ChunkedTokenDatabase`.
        chunk_tokens: of every chunk.
    """

    def __init__(self, keys: Any, chunk_tokens: int) -> None:
        self._keys = keys
        self._chunk_tokens = chunk_tokens

    def process_tokens(
        self,
        tokens: list[int],
        hashes: None = None,
        offsets: None = None,
        mask: torch.Tensor | None = None,
        make_key: bool = True,
        request_configs: dict[str, str] | None = None,
    ) -> Iterator[tuple[int, int, Any]]:
        """(begin, end, key) of every whole chunk that the mask holds. Cost: O(tokens)."""
        assert hashes is None and offsets is None, "prefixes are known by their tokens"
        digests = list(self._digests(tokens))
        first = 0 if mask is None else mask.numel() - int(mask.sum())
        for begin, end, key in self._keys.process_tokens(
            hashes=digests, offsets=[self._chunk_tokens] * len(digests), make_key=make_key, request_configs=request_configs
        ):
            if begin >= first:
                yield begin, end, key

    def _digests(self, tokens: list[int]) -> Iterator[int]:
        digest = 0
        for end in range(self._chunk_tokens, len(tokens) + 1, self._chunk_tokens):
            chunk = tuple(tokens[end - self._chunk_tokens : end])
            digest = int.from_bytes(sha256(repr((digest, chunk, ())).encode()).digest(), "big")
            yield digest
