"""The C module beside this file; missing where nothing is compiled. See `numpy_flags`."""

import numpy as np
from numpy.typing import NDArray

def are(ids: NDArray[np.int64] | bytes, flags: bytearray, flag: bool, /) -> int: ...
def put(ids: NDArray[np.int64] | bytes, flags: bytearray, flag: bool, /) -> None: ...
