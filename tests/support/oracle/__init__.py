"""Tiny models of real families, and the engine that compares what they say with the cache and without it.

Models this small gain nothing from a second thread, and one adds up in the same order every time.
"""

import torch

torch.set_num_threads(1)
