"""Namespaces: state of another adapter, tenant or weights, which must not hit."""

from __future__ import annotations

from exhibit import FULL, MAMBA, Exhibit, Finish, Invalidate, Request, Start, Step, Tokens, serve, sglang, text, vllm

HYBRID = (FULL, MAMBA)


def of(namespace: str, prompt: Tokens) -> Request:
    """A request in a namespace."""
    return Request(prompt=prompt, namespace=namespace)


def reloaded(namespace: str) -> tuple[Step, ...]:
    """The same prompt twice before and twice behind a change of weights."""
    prompt = text("prompt", 300)
    before, behind = ([of(namespace, prompt) for _ in range(2)] for _ in range(2))
    return (*serve(*before), Invalidate(namespace), *serve(*behind))


def overtaken() -> tuple[Step, ...]:
    """Weights that change under a running request, whose state must not be found later."""
    prompt = text("rollout", 300)
    first, second, third = (of("", prompt) for _ in range(3))
    return (Start(first), Invalidate(""), Finish(first), *serve(second, third))


EXHIBITS = (
    Exhibit(
        name="adapter-as-a-key",
        thread=sglang(24638),
        title="A request of the base model finds an adapter's KV",
        reported="An `extra_key` that is an adapter's id gives a request without that adapter its cached KV, and other output.",
        components=(FULL,),
        script=serve(*[of(name, text("prompt", 200)) for name in ("lora=alpha", "extra=alpha", "lora=alpha")]),
        ceiling=192,
        why="Only the third has a prompt of its own namespace before it: 12 pages.",
        lesson="Equal tokens of two namespaces never meet; a name that says its kind (`lora=`, `extra=`) is of no other kind.",
        lost={"other_namespace": 192},
    ),
    Exhibit(
        name="adapter-and-salt",
        thread=vllm(44701),
        title="An adapter's name and a salt hash alike",
        reported="A request with the salt COLLIDE_SALT hits a block of the adapter that is named so.",
        components=HYBRID,
        script=serve(*[of(name, text("prompt", 600)) for name in ("lora=COLLIDE_SALT", "salt=COLLIDE_SALT")]),
        ceiling=0,
        why="They are two namespaces, so nothing may hit.",
        lesson="The ledger says `other_namespace`, where a common cache would have hit.",
        lost={"other_namespace": 592},
    ),
    Exhibit(
        name="adapter-reloaded",
        thread=vllm(42125),
        title="An adapter that is loaded anew keeps its old KV",
        reported="A new version under the same name hits the blocks of the one before.",
        components=HYBRID,
        script=reloaded("lora=alpha"),
        ceiling=512,
        why="One prompt of each version finds that version's state, 256 tokens.",
        lesson="`invalidate` begins a weights version for one namespace in O(1).",
        lost={"other_weights": 288},
    ),
    Exhibit(
        name="rollouts-on-old-weights",
        thread=vllm(9744),
        title="New weights, and the prefixes of the old ones",
        reported="Rollouts of reinforcement learning load weights again and again, and go on with prefixes of the old ones.",
        components=HYBRID,
        script=overtaken(),
        ceiling=256,
        why="The first prompt was computed with the old weights; only the third may hit, what the second left.",
        lesson="What a running request commits behind a change of weights is not published.",
        lost={"other_weights": 288},
    ),
)
