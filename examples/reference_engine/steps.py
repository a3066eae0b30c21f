"""What one step does for one request: a chunk of its prompt, or a token, or a draft's proposals; and what is published then."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reference_engine.engine import Engine
    from reference_engine.model_runner import Pass
    from reference_engine.request import Request, Running
    from reference_engine.speculation import Speculation


def advance(engine: Engine, request: Request, running: Running) -> None:
    """Run what is next. Nothing happens if the request has to give up its pages first.

    Raises TransferError where the request waits for a load that failed.
    """
    if running.computed < len(request.tokens) - 1 or not request.output:
        _prefill(engine, request, running)
    elif engine.speculation is not None and running.drafted >= 0:
        _decode_drafted(engine, request, running, engine.speculation)
    else:
        _decode(engine, request, running)


def _prefill(engine: Engine, request: Request, running: Running) -> None:
    tokens, start = request.tokens, running.computed
    end = _chunk_end(engine, running, len(tokens))
    if not engine.grow(request, end):
        return
    run = _run(engine, running, tokens[start:end], start)
    run.write()
    if engine.speculation is not None:
        engine.speculation.follow(running, tokens, end)
    engine.ran(request, running, run)
    _publish(engine, request, running, end, wanted=True)
    if end == len(tokens):
        request.output.append(engine.sampler(run.logits[-1]))


def _chunk_end(engine: Engine, running: Running, length: int) -> int:
    """A rebuild runs in one piece, and no chunk runs past a place where a state or a window is to be saved."""
    start, lease = running.computed, running.lease
    end = min(length, max(start + engine.settings.chunk_tokens, lease.cached_tokens))
    return min([end, *(point for point in lease.save_at if point > start)])


def _decode(engine: Engine, request: Request, running: Running) -> None:
    start = running.computed
    if not engine.grow(request, start + 1):
        return
    run = _run(engine, running, request.tokens[start:], start)
    run.write()
    engine.ran(request, running, run)
    _publish(engine, request, running, start + 1, wanted=_is_due(engine, start, start + 1))
    request.output.append(engine.sampler(run.logits[-1]))


def _decode_drafted(engine: Engine, request: Request, running: Running, speculation: Speculation) -> None:
    """Run a draft's proposals as one chunk and keep those that the model would have said itself."""
    start = running.computed
    count = min(speculation.proposals, request.new_tokens - len(request.output) - 1)
    if not engine.grow(request, start + 1 + count):
        return
    tokens = request.tokens
    proposed = speculation.propose(running, tokens, count)
    run = _run(engine, running, [*tokens[start:], *proposed], start)
    said = [engine.sampler(logits) for logits in run.logits]
    agreed = next((i for i, token in enumerate(proposed) if token != said[i]), count)
    end = start + 1 + agreed
    if agreed < count:
        run = _without_rejected(engine, running, run, [*tokens[start:], *proposed[:agreed]])
    else:
        run.write()
    engine.cache.truncate(running.lease, end)
    running.drafted = min(running.drafted, end)
    request.output += said[: agreed + 1]
    speculation.follow(running, request.tokens, end)
    engine.ran(request, running, run)
    _publish(engine, request, running, end, wanted=_is_due(engine, start, end))


def _without_rejected(engine: Engine, running: Running, run: Pass, kept: list[int]) -> Pass:
    """Rows of rejected tokens are not written; a recurrent state is computed again, from where it was."""
    if running.runner.can_cut:
        run.write(run.start + len(kept))
        return run.until(run.start + len(kept))
    run = _run(engine, running, kept, run.start)
    run.write()
    return run


def _run(engine: Engine, running: Running, tokens: list[int], start: int) -> Pass:
    lease = running.lease
    gate = (lambda layer_id: engine.cache.wait_layer(lease, layer_id)) if lease.is_loading or lease.failure else None
    return running.runner.run(running.rows, tokens, start, gate)


def _is_due(engine: Engine, start: int, end: int) -> bool:
    every = engine.settings.commit_pages * engine.cache.page_size
    return every > 0 and start // every < end // every


def _publish(engine: Engine, request: Request, running: Running, end: int, *, wanted: bool) -> None:
    """Save the state where the cache asked for it, and commit; or only say how far the request is."""
    cache, lease = engine.cache, running.lease
    page = lease.save_pages.get(end)
    if (end <= lease.committed and end not in lease.save_at) or (page is None and not wanted):
        cache.advance(lease, end)
        return
    states = {}
    if page is not None:
        running.rows.save_state(page)
        states[end] = page
    cache.commit(lease, request.tokens[:end], states, without=not_drafted(engine, running))
    if engine.speculation is not None:
        engine.speculation.committed(running, end)


def not_drafted(engine: Engine, running: Running) -> tuple[str, ...]:
    """The components that a request does not compute."""
    return () if engine.speculation is None or running.drafted >= 0 else engine.speculation.components


def can_publish_state(engine: Engine, running: Running) -> bool:
    """Whether the running state is worth publishing as it is, the request having ended."""
    lease, end = running.lease, running.computed
    return end % engine.cache.layout.state_grid_tokens == 0 and end > lease.prompt_tokens and end not in lease.saved
