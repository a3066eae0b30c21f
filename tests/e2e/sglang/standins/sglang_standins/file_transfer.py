"""Moves what a prefill server has computed to a decode server through files, where SGLang's own transfers need RDMA.

Off unless SGLANG_FILE_TRANSFER names a folder, which both servers share; then it takes the place of every transfer back end.
Each rank of a request has a folder there, by its bootstrap room: the decode server's `ask` (how much of the prompt it has), the
prefill server's pieces, `last`, and `aborted`.

As with RDMA, nothing is read when it is sent: the bytes are those in the slots up to SGLANG_TRANSFER_S seconds later, so slots
that are given back before the transfer has ended bring wrong ones. SGLANG_TRANSFER_FAILS is the share of requests whose
transfer fails, on either server, when some of it has been written.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import random
import time
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

FOLDER, FAILS, LASTS = "SGLANG_FILE_TRANSFER", "SGLANG_TRANSFER_FAILS", "SGLANG_TRANSFER_S"


def register() -> None:
    """Replace SGLang's choice of transfer classes; SGLang calls this in each of its processes."""
    folder = os.environ.get(FOLDER)
    if not folder:
        return
    from sglang.srt.disaggregation import decode, prefill, utils
    from sglang.srt.disaggregation.base import KVArgs
    from sglang.srt.managers import disagg_service

    kinds, sender, receiver = utils.KVClassType, _sender(Path(folder)), _receiver(Path(folder))
    classes = {
        kinds.KVARGS: KVArgs,
        kinds.MANAGER: _manager(),
        kinds.SENDER: sender,
        kinds.RECEIVER: receiver,
        kinds.BOOTSTRAP_SERVER: lambda *_, **__: None,
    }
    module: Any
    for module in (utils, prefill, decode, disagg_service):
        module.get_kv_class = lambda _, kind: classes[kind]


def failing(room: int) -> str:
    """The side on which the transfer of a request fails, the same on every rank; empty for one that does not."""
    draw = random.Random(room)
    return draw.choice(("prefill", "decode")) if draw.random() < float(os.environ.get(FAILS, "0")) else ""


def put(path: Path, value: object) -> None:
    """Write a file that is there as a whole or not at all."""
    part = path.with_suffix(f".{os.getpid()}.part")  # both sides may abort at once
    part.write_bytes(pickle.dumps(value))
    part.rename(path)


def rows(addresses: list[int], sizes: list[int], index: int) -> list[bytes]:
    """The bytes of a page, or of another row, in each buffer."""
    return [ctypes.string_at(address + int(index) * size, size) for address, size in zip(addresses, sizes, strict=True)]


def write(addresses: list[int], sizes: list[int], index: int, given: Iterable[bytes]) -> None:
    """Write these bytes."""
    for address, size, row in zip(addresses, sizes, given, strict=True):
        assert len(row) == size
        ctypes.memmove(address + int(index) * size, row, size)


def _manager() -> Any:
    from sglang.srt.disaggregation.fake.conn import FakeKVManager

    class Servers(dict[str, object]):
        """Every address is that of a prefill server of one rank."""

        def get(self, key: str, default: object = None) -> Any:
            del key, default
            return SimpleNamespace(dp_size=1, follow_bootstrap_room=True)

    class Manager(FakeKVManager):  # type: ignore[misc]  # its base is untyped where the engine is not installed
        """What both sides share."""

        enable_all_cp_ranks_for_transfer = False

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.transfer_infos: dict[int, object] = {}
            self.prefill_info_table = Servers()

        def try_ensure_parallel_info(self, _: str) -> bool:
            return True

    return Manager


def _sender(folder: Path) -> Any:
    from sglang.srt.disaggregation.base.conn import KVPoll
    from sglang.srt.disaggregation.fake.conn import FakeKVSender

    class Sender(FakeKVSender):  # type: ignore[misc]  # as above
        """Writes pieces of whole pages some time after they were sent; with the last one the states and what is said of the
        first token."""

        conclude_state: Any
        aux: Any

        def __init__(self, mgr: Any, bootstrap_addr: str, bootstrap_room: int, **_: object) -> None:
            super().__init__(mgr, bootstrap_addr, bootstrap_room)
            self.room = folder / f"{bootstrap_room}.{mgr.kv_args.engine_rank}"
            self.room.mkdir(exist_ok=True)
            self.fails = failing(bootstrap_room) == "prefill"
            self.lasts_s = random.Random(-bootstrap_room).random() * float(os.environ.get(LASTS, "0"))
            self.sent = 0
            self.pending: list[tuple[float, int, Any, Any]] = []

        def poll(self) -> Any:
            if self.conclude_state is None and (self.room / "aborted").exists():
                self.conclude_state = KVPoll.Failed
            while self.conclude_state is None and self.pending and self.pending[0][0] <= time.monotonic():
                self._read(*self.pending.pop(0)[1:])
            if self.conclude_state is not None:
                return self.conclude_state
            if self.has_sent:
                return KVPoll.Transferring
            return KVPoll.WaitingForInput if (self.room / "ask").exists() else KVPoll.Bootstrapping

        def pop_decode_prefix_len(self) -> int:
            return int(pickle.loads((self.room / "ask").read_bytes()))

        def init(self, num_kv_indices: int, aux_index: int | None = None) -> None:
            super().init(num_kv_indices, aux_index)
            self.total, self.aux = num_kv_indices, aux_index

        def get_max_transfer_tokens(self) -> None:
            return None

        def send(self, kv_indices: Any, state_indices: list[Any] | None = None, *_: object, **__: object) -> None:
            self.pending.append((time.monotonic() + self.lasts_s, self.sent, kv_indices, state_indices))
            self.sent += len(kv_indices)
            self.has_sent = True

        def _read(self, start: int, kv_indices: Any, state_indices: list[Any] | None) -> None:
            args, is_last = self.kv_mgr.kv_args, start + len(kv_indices) >= self.total
            if is_last and self.fails:
                self.abort()
                return
            piece: dict[str, Any] = {"start": start}
            piece["pages"] = [rows(args.kv_data_ptrs, args.kv_item_lens, index) for index in kv_indices]
            if is_last:
                piece["aux"] = rows(args.aux_data_ptrs, args.aux_item_lens, self.aux)
                piece["states"] = [
                    [] if indices is None else [rows(addresses, sizes, index) for index in indices]
                    for addresses, sizes, indices in zip(
                        args.state_data_ptrs, args.state_item_lens, state_indices or (), strict=False
                    )
                ]
            put(self.room / f"{start}.piece", piece)
            if is_last:
                put(self.room / "last", True)
                self.conclude_state = KVPoll.Success

        def abort(self) -> None:
            super().abort()
            put(self.room / "aborted", True)

        def clear(self) -> None:
            """The other side may still read."""

    return Sender


def _receiver(folder: Path) -> Any:
    from sglang.srt.disaggregation.base.conn import KVPoll
    from sglang.srt.disaggregation.fake.conn import FakeKVReceiver

    class Receiver(FakeKVReceiver):  # type: ignore[misc]  # as above
        """Writes the pieces into the slots that the scheduler has reserved, when the last one is there."""

        conclude_state: Any
        aux: Any

        def __init__(self, mgr: Any, bootstrap_addr: str, bootstrap_room: int, **_: object) -> None:
            super().__init__(mgr, bootstrap_addr, bootstrap_room)
            self.room = folder / f"{bootstrap_room}.{mgr.kv_args.engine_rank}"
            self.room.mkdir(exist_ok=True)
            self.fails = failing(bootstrap_room) == "decode"

        def send_metadata(
            self,
            kv_indices: Any,
            aux_index: int | None = None,
            state_indices: list[Any] | None = None,
            decode_prefix_len: int | None = None,
            **_: object,
        ) -> None:
            super().send_metadata(kv_indices, aux_index, state_indices, decode_prefix_len)
            self.slots, self.aux, self.states = kv_indices, aux_index, state_indices
            (self.room / "prefix").write_text(str(decode_prefix_len or 0))
            put(self.room / "ask", decode_prefix_len or 0)

        def poll(self) -> Any:
            if self.conclude_state is None and (self.room / "aborted").exists():
                self.conclude_state = KVPoll.Failed
            if self.conclude_state is not None:
                return self.conclude_state
            if not self.bootstrap_done:
                return KVPoll.Bootstrapping
            if not self.has_sent_metadata:
                return KVPoll.WaitingForInput
            if not (self.room / "last").exists():
                return KVPoll.Transferring
            for path in sorted(self.room.glob("*.piece"))[: 1 if self.fails else None]:
                self._write(pickle.loads(path.read_bytes()))
            self.conclude_state = KVPoll.Failed if self.fails else KVPoll.Success
            return self.conclude_state

        def _write(self, piece: dict[str, Any]) -> None:
            args = self.kv_mgr.kv_args
            for at, page in enumerate(piece["pages"], start=piece["start"]):
                write(args.kv_data_ptrs, args.kv_item_lens, self.slots[at], page)
            if "aux" in piece and not self.fails:
                write(args.aux_data_ptrs, args.aux_item_lens, self.aux, piece["aux"])
                kinds = zip(args.state_data_ptrs, args.state_item_lens, self.states or (), piece["states"], strict=False)
                for addresses, sizes, indices, given in kinds:
                    for index, row in zip(indices if given else (), given, strict=True):
                        write(addresses, sizes, index, row)

        def abort(self) -> None:
            super().abort()
            put(self.room / "aborted", True)

        def clear(self) -> None:
            """The other side may still read."""

    return Receiver
