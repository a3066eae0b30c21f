"""The usual cache: fixed page counts, tensors on device, and a host tier that copies their bytes.

The model has an attention layer, whose keys are the token ids, and a linear layer, whose state is their sum; so each run can
check what it resumed from. Requests run one after another here; `examples/embed.py` runs several, and preempts.
"""

import torch

from unified_tree import WHOLE, Component, Key, OutOfPagesError, PageFormat, Part, Path, Point, TransferError
from unified_tree.components import Composition
from unified_tree.controllers import Lease, PrefixCache, tensor_tiers

PAGE, CHUNK, ANSWER, ATTENTION, LINEAR = 16, 32, 20, 0, 1  # the last two are layer ids
KEYS, SUM = (Part("k", "float32", (1, 4)),), (Part("sum", "float32", (8,)),)  # of a token; of a state
FORMATS = {
    "full": PageFormat(component="full", layer_ids=(ATTENTION,), parts=KEYS, slots_per_page=PAGE, shard=WHOLE),
    "mamba": PageFormat(component="mamba", layer_ids=(LINEAR,), parts=SUM, slots_per_page=1, shard=WHOLE),
}
KINDS = (Component(name="full", coverage=Path()), Component(name="mamba", coverage=Point()))
MODEL = Composition(name="tiny", page_size=PAGE, components=KINDS).with_formats(FORMATS)  # or `composition_for(...)`
DEVICE, HOST = {"full": 16, "mamba": 8}, {"full": 256, "mamba": 64}  # pages

tiers = tensor_tiers(MODEL, device_page_counts=DEVICE, host_page_counts=HOST)  # device="cuda" on a GPU
cache = PrefixCache(MODEL.components, MODEL.page_size, DEVICE, host=tiers.host_tier())
keys = tiers.device["full"].tensor(ATTENTION, "k")  # [page, slot, head, dim]
sums = tiers.device["mamba"].tensor(LINEAR, "sum")  # [page, slot, 8], one slot a page


def run(lease: Lease, tokens: list[int], start: int, end: int) -> None:
    """Compute the tokens [start, end), each layer after its load from host."""
    cache.wait_layer(lease, ATTENTION)
    pages, at = torch.tensor(lease.pages("full")), torch.arange(start, end)  # page ids by page index
    keys[pages[at // PAGE], at % PAGE] = keys.new_tensor(tokens[start:end])[:, None, None]
    cache.wait_layer(lease, LINEAR)
    if start == 0:  # nothing was cached
        sums[lease.state_page] = 0
    for copy in lease.state_copies:  # empty after the first commit
        sums[copy.target] = sums[copy.source]
    sums[lease.state_page] += sum(tokens[start:end])
    assert keys[pages, :, 0, 0].flatten()[:end].tolist() == tokens[:end]
    assert sums[lease.state_page, 0, 0] == sum(tokens[:end])


def answer(lease: Lease, tokens: list[int]) -> list[int]:
    """Compute a prompt in chunks and its answer token by token; save states where the lease has a page for one."""
    start, goal = lease.compute_from, len(tokens) + ANSWER
    with lease:  # is released at the end, and by an exception
        while start < goal:
            cache.poll()  # once a step: it also starts the copies to host
            end = min(start + CHUNK, len(tokens), lease.next_stop(start) or len(tokens))
            try:
                cache.allocate(lease, end)
            except OutOfPagesError:  # copies to host hold pages, too
                cache.drain()
                cache.allocate(lease, end)
            run(lease, tokens, start, end)
            saved = {}
            if end in lease.save_pages:
                saved[end] = lease.save_pages[end]
                sums[saved[end]] = sums[lease.state_page]
            cache.commit(lease, tokens[lease.committed : end], saved, begin=lease.committed)
            if end == len(tokens) < goal:
                tokens.append(7)  # the sampled token
            start = end
    return tokens


def serve(prompt: list[int]) -> list[int]:
    """Answer a prompt; where a load from host fails, without what is there."""
    try:
        return answer(cache.acquire(Key(prompt)), list(prompt))
    except TransferError:
        return answer(cache.acquire(Key(prompt), may_load=False), list(prompt))


if __name__ == "__main__":
    for user in (0, 1, 2, 3, 0, 1, 2, 3):  # on device there is room for two
        serve([user, *range(100)])
    stats, violations = cache.stats(), cache.tree.check()
    print(f"{stats.hit_tokens} of {stats.prompt_tokens} tokens hit, {stats.host_hit_tokens} of these on host; {violations}")
    cache.close()
