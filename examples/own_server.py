"""A server of one's own: models of `transformers` over `PrefixCache`, with real keys, values and states in its pages.

Requests arrive while others run; each step gives a running request a chunk of its prompt or a token. At the end every output is
compared with the same model without a cache. The models are tiny and random: one with sliding windows (as Gemma 3), one
with recurrent states (as Qwen3-Next). Sequences run singly, and rows are gathered where a kernel would read pages in place.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache
from transformers.cache_utils import DynamicSlidingWindowLayer, LinearAttentionLayer

from unified_tree import Key, OutOfPagesError, Path, Point, Trailing
from unified_tree.components import Composition, from_hf_config
from unified_tree.controllers import Lease, PrefixCache

PAGE, CHUNK, ANSWER, RUNNING, PROMPTS = 8, 10, 10, 4, 20
TINY = {"vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2}
TINY |= {"head_dim": 8, "intermediate_size": 48, "tie_word_embeddings": False}
WINDOWS = {"layer_types": ["sliding_attention", "sliding_attention", "full_attention"], "sliding_window": CHUNK + 1}
STATES = {"layer_types": ["linear_attention", "linear_attention", "full_attention"], "num_experts": 4}
STATES |= {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 32, "linear_value_head_dim": 32}
STATES |= {"num_experts_per_tok": 2, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 24}
MODELS: dict[str, dict[str, Any]] = {"gemma3_text": WINDOWS, "qwen3_next": STATES}
PAGE_COUNTS = {Path: 26, Trailing: 14, Point: 7}
"""By coverage; so few that requests are preempted, and prefixes evicted."""


def tiny_model(model_type: str) -> tuple[Any, Composition]:
    """A model with random weights, and what the library makes of its configuration."""
    torch.manual_seed(1)
    config = AutoConfig.for_model(model_type, **TINY, **MODELS[model_type])
    make: Any = AutoModelForCausalLM.from_config
    model = make(config, attn_implementation="eager")
    for weight in model.parameters():
        if weight.ndim > 1:
            torch.nn.init.normal_(weight, std=weight.shape[-1] ** -0.5)
    kept = from_hf_config(config.to_dict(), page_size=PAGE, kv_dtype="float32", conv_dtype="float32", state_dtype="float32")
    return model.eval(), kept


def states_of(layer: Any) -> Iterator[tuple[str, dict[int, torch.Tensor]]]:
    """The states of a recurrent layer: of its convolutions, and of its recurrence."""
    yield "conv", {i: state for i, state in layer.conv_states.items() if state is not None}
    yield "recurrent", {i: state for i, state in layer.recurrent_states.items() if state is not None}


class Memory:
    """The pages: for each layer a tensor of keys and of values [page, token in page, head, dim], or of states [page, ...].

    Attributes:
        component: by layer, the component whose page ids it is indexed by.
        tensors: by layer and name.
    """

    def __init__(self, model: Any, kept: Composition, page_counts: dict[str, int]) -> None:
        names = {type(component.coverage): component.name for component in kept.components}
        probe = DynamicCache(config=model.config)
        model(input_ids=torch.zeros(1, PAGE, dtype=torch.long), past_key_values=probe)
        self.component: list[str] = []
        self.tensors: list[dict[str, torch.Tensor]] = []
        for layer in probe.layers:
            if isinstance(layer, LinearAttentionLayer):
                self.component.append(names[Point])
                rows = {f"{name}{i}": state[0] for name, states in states_of(layer) for i, state in states.items()}
            else:
                self.component.append(names[Trailing if isinstance(layer, DynamicSlidingWindowLayer) else Path])
                rows = {name: getattr(layer, name)[0, :, :PAGE].transpose(0, 1) for name in ("keys", "values")}
            count = page_counts[self.component[-1]]
            self.tensors.append({name: torch.full((count, *row.shape), torch.nan) for name, row in rows.items()})

    def copy_state(self, component: str, source: int, target: int) -> None:
        """Copy a state from one page into another, in every layer."""
        for name, tensors in zip(self.component, self.tensors, strict=True):
            for tensor in tensors.values() if name == component else ():
                tensor[target] = tensor[source]

    def load(self, cache: Any, lease: Lease, start: int) -> None:
        """Fill a new cache of `transformers` with the state of the tokens [0, start), from a lease's pages."""
        for name, tensors, layer in zip(self.component, self.tensors, cache.layers, strict=True):
            if isinstance(layer, LinearAttentionLayer):
                self._load_states(layer, {key: tensor[lease.state_page][None].clone() for key, tensor in tensors.items()})
                continue
            first = max(0, start - CHUNK) if isinstance(layer, DynamicSlidingWindowLayer) else 0
            pages, offsets = self._places(lease, name, first, start)
            keys, values = (tensors[part][pages, offsets].transpose(0, 1)[None] for part in ("keys", "values"))
            layer.lazy_initialization(keys, values)
            layer.keys, layer.values = keys, values
            if isinstance(layer, DynamicSlidingWindowLayer):
                layer.cumulative_length = start

    def _load_states(self, layer: Any, states: dict[str, torch.Tensor]) -> None:
        for key, state in states.items():
            kind, i = key[:-1], int(key[-1])
            getattr(layer, f"{kind}_states")[i] = state
            getattr(layer, f"is_{kind}_states_initialized")[i] = True
            if kind == "conv":
                layer.conv_kernel_size[i], layer.has_previous_state[i] = state.shape[-1], True
                layer.dtype, layer.device = state.dtype, state.device

    def store(self, cache: Any, lease: Lease, start: int, end: int) -> None:
        """Write the state of the tokens [start, end) into the lease's pages: a layer has it last."""
        for name, tensors, layer in zip(self.component, self.tensors, cache.layers, strict=True):
            if isinstance(layer, LinearAttentionLayer):
                for kind, states in states_of(layer):
                    for i, state in states.items():
                        tensors[f"{kind}{i}"][lease.state_page] = state[0]
                continue
            pages, offsets = self._places(lease, name, start, end)
            for part in ("keys", "values"):
                tensors[part][pages, offsets] = getattr(layer, part)[0, :, start - end :].transpose(0, 1)

    def _places(self, lease: Lease, component: str, first: int, last: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Where tokens lie: their pages, and their places in these."""
        tokens = torch.arange(first, last)
        pages = torch.tensor(lease.pages(component, first // PAGE))[tokens // PAGE - first // PAGE]
        assert (pages >= 0).all()
        return pages, tokens % PAGE


@dataclass(eq=False)
class Request:
    """A prompt, then what was answered so far. `computed` tokens have their state in the lease's pages."""

    tokens: list[int]
    end: int
    computed: int = 0


class Server:
    """Serves requests, the oldest first: for pages the youngest gives way."""

    def __init__(self, model: Any, kept: Composition) -> None:
        counts = {c.name: PAGE_COUNTS[type(c.coverage)] for c in kept.components}
        self.model, self.memory = model, Memory(model, kept, counts)
        self.cache = PrefixCache(kept.components, PAGE, counts, rebuild=False)
        self.waiting: list[Request] = []
        self.running: dict[Request, Lease] = {}
        self.preemptions = 0

    def step(self) -> None:
        """Admit what fits, and give every running request a chunk of its prompt or a token."""
        while self.waiting and len(self.running) < RUNNING and self.admit(self.waiting[0]):
            self.waiting.pop(0)
        for request, lease in list(self.running.items()):
            if not lease.is_released:
                self.advance(request, lease)

    def admit(self, request: Request) -> bool:
        """Resume from what is cached. False if there is no page for a running state."""
        try:
            lease = self.running[request] = self.cache.acquire(Key(request.tokens))
        except OutOfPagesError:
            return False
        request.computed = lease.compute_from
        for copy in lease.state_copies:
            self.memory.copy_state(copy.component, copy.source, copy.target)
        return True

    def advance(self, request: Request, lease: Lease) -> None:
        """Compute a chunk, up to where the cache wants a state; publish it; and sample a token after the last one."""
        start, tokens = request.computed, request.tokens
        end = min(len(tokens), start + CHUNK, lease.next_stop(start) or len(tokens))
        if not self.grow(lease, end):
            return
        logits = self.run(lease, tokens[start:end], start)
        states = {}
        if end in lease.save_pages and lease.state_page is not None:
            states[end] = lease.save_pages[end]
            self.memory.copy_state(self.memory.component[0], lease.state_page, states[end])
        self.cache.commit(lease, tokens[:end], states)
        request.computed = end
        if end == len(tokens):
            tokens.append(int(logits[-1].argmax()))
            if len(tokens) == request.end:
                self.cache.release(self.running.pop(request))

    def grow(self, lease: Lease, length: int) -> bool:
        """Allocate, at the cost of younger requests; False if the lease itself had to give way."""
        while not lease.is_released:
            try:
                self.cache.allocate(lease, length)
                return True
            except OutOfPagesError:
                if len(self.running) == 1:
                    raise  # the pool is too small for a single request
                request, victim = self.running.popitem()
                self.cache.preempt(victim, request.tokens[: request.computed])
                self.waiting.insert(0, request)
                self.preemptions += 1
        return False

    @torch.no_grad()
    def run(self, lease: Lease, tokens: list[int], start: int) -> torch.Tensor:
        """The model computes tokens from `start` on; returns their logits."""
        cache, end = DynamicCache(config=self.model.config), start + len(tokens)
        if start:
            self.memory.load(cache, lease, start)
        positions = torch.arange(start, end)[None]
        output = self.model(input_ids=torch.tensor([tokens]), position_ids=positions, past_key_values=cache)
        self.memory.store(cache, lease, start, end)
        logits: torch.Tensor = output.logits[0]
        return logits


@torch.no_grad()
def equals_no_cache(model: Any, tokens: list[int]) -> bool:
    """Whether a run over all tokens, without a cache, samples the same answer."""
    logits = model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0]
    return bool(logits[-ANSWER - 1 : -1].argmax(1).tolist() == tokens[-ANSWER:])


def main() -> None:
    """Conversations over two system prompts: each request goes on from an earlier answer, or begins anew."""
    torch.set_num_threads(1)  # models this small gain nothing from more
    for model_type in MODELS:
        random, (model, kept) = Random(0), tiny_model(model_type)
        server = Server(model, kept)
        systems = [[random.randrange(96) for _ in range(70)] for _ in range(2)]
        served: list[Request] = []
        while len(served) < PROMPTS or server.waiting or server.running:
            if len(served) < PROMPTS:
                done = [request.tokens for request in served if len(request.tokens) == request.end < 120]
                history = random.choice(done) if done and random.random() < 0.5 else random.choice(systems)
                prompt = history + [random.randrange(96) for _ in range(random.randrange(1, 20))]
                served.append(Request(prompt, len(prompt) + ANSWER))
                server.waiting.append(served[-1])
            server.step()
        equal = sum(equals_no_cache(model, request.tokens) for request in served)
        stats = server.cache.stats()
        print(f"{model_type}: {equal} of {len(served)} answers equal those without a cache, ", end="")
        print(f"{stats.hit_tokens / stats.prompt_tokens:.0%} of the prompt tokens hit, {server.preemptions} preemptions")


if __name__ == "__main__":
    main()
