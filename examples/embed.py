"""A scheduler in seventy lines: requests share prefixes, run in chunks, decode together; for pages the youngest gives way."""

from unified_tree import Key, OutOfPagesError
from unified_tree.components import composition_for
from unified_tree.controllers import Lease, PrefixCache

MODEL, CHUNK, ANSWER = composition_for("gpt-oss-20b"), 256, 32
PROMPTS = [[*range(600), *range(10_000 * i, 10_000 * i + 300)] for i in range(1, 13)]


def run(lease: Lease, begin: int, end: int) -> None:
    """Where kernels would compute the tokens [begin, end): they read the cached pages, and write the new ones."""
    assert begin < end and all(len(lease.pages(name)) for name in lease.tables)


class Scheduler:
    """`running` has the tokens of each lease, the oldest first; `cached` how many were cached at each admission."""

    def __init__(self, cache: PrefixCache, prompts: list[list[int]]) -> None:
        self.cache, self.waiting, self.cached = cache, [list(prompt) for prompt in prompts], list[int]()
        self.running, self.limit = dict[Lease, list[int]](), 4

    def step(self) -> None:
        """Admit what fits, then decode a token of each running request."""
        self.cache.poll()
        while self.waiting and len(self.running) < self.limit and self.admit(self.waiting.pop(0)):
            pass
        for lease, tokens in list(self.running.items()):
            if self.grow(lease, len(tokens) + 1):
                tokens.append(len(tokens))  # the token that the model would have chosen
                run(lease, len(tokens) - 1, len(tokens))
                self.cache.advance(lease, len(tokens))
                if len(tokens) % ANSWER == 0:  # the end of the answer
                    self.cache.commit(lease, self.running.pop(lease))
                    self.cache.release(lease)
                    self.limit = 4

    def admit(self, tokens: list[int]) -> bool:
        """Compute a prompt in chunks. False if it has to wait: it takes no pages from older requests."""
        lease = self.cache.acquire(Key(tokens))  # with recurrent states this raises OutOfPagesError, too: let it wait
        self.running[lease], at = tokens, lease.compute_from
        self.cached.append(lease.cached_tokens)
        while at < len(tokens) and self.grow(lease, end := min(len(tokens), max(at + CHUNK, lease.cached_tokens))):
            run(lease, at, end)
            self.cache.commit(lease, at := end)
        return at == len(tokens)

    def grow(self, lease: Lease, length: int) -> bool:
        """Allocate, at the cost of younger requests; False if there was none, and the lease itself was preempted."""
        while not lease.is_released:
            try:
                self.cache.allocate(lease, length)
                return True
            except OutOfPagesError:
                if len(self.running) == 1:
                    raise  # the pool is too small; with a host tier `drain` first, for transfers hold pages, too
                victim, tokens = self.running.popitem()
                self.cache.preempt(victim, tokens[: victim.computed])
                self.waiting.insert(0, tokens)  # prompt and output: it resumes after both, as far as they stay cached
                self.limit = len(self.running)  # until a request has ended; otherwise the victim would take the pages back
        return False


if __name__ == "__main__":
    scheduler = Scheduler(PrefixCache(MODEL.components, MODEL.page_size, MODEL.split_budget(1 << 30)), PROMPTS + PROMPTS[:4])
    while scheduler.waiting or scheduler.running:
        scheduler.step()
    stats = scheduler.cache.stats()
    print("cached tokens of each prompt:", *scheduler.cached)
    print(f"hit rate {stats.hit_tokens / stats.prompt_tokens:.0%}, violations {scheduler.cache.tree.check()}")
