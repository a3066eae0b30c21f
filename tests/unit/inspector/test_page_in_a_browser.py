"""The page in a real browser: each view draws what the cache has, and complains of nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
from browser import WHY_NOT, Browser
from inspected_cache import busy_cache, serve

from unified_tree import Key
from unified_tree.controllers import PrefixCache
from unified_tree.controllers.inspector import Inspector

pytestmark = pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))
VIEWS = ("bytes", "tree", "walk", "misses", "tape", "ages", "leases")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture
def calm() -> threading.Event:
    """Once it is set no more requests come: the keys of the last 256 are kept, of which a test chooses one."""
    return threading.Event()


@pytest.fixture
def page(browser: Browser, calm: threading.Event) -> Iterator[tuple[Browser, PrefixCache]]:
    """A page on a cache that goes on working, with a lease that stays open."""
    cache = busy_cache()
    lease = cache.acquire(Key(list(range(50)), "held"), reserve_tokens=50)
    stop = threading.Event()

    def work(inspector: Inspector) -> None:
        rng = np.random.default_rng(0)
        while not stop.is_set():
            if calm.is_set():
                cache.poll()
            else:
                serve(cache, 10, rng)
                cache.invalidate("gone")
            time.sleep(0.02 if calm.is_set() else 0.1)
        inspector.close()

    inspector = Inspector.open(cache, figures_every_s=0.1)
    worker = threading.Thread(target=work, args=(inspector,))
    worker.start()
    try:
        browser.go("about:blank")
        browser.go(inspector.url or "")
        browser.wait("document.body.dataset.painted")
        yield browser, cache
        browser.go("about:blank")
    finally:
        stop.set()
        worker.join()
        cache.release(lease)


def show(browser: Browser, view: str) -> None:
    browser.run(f"document.getElementById('tab-{view}').click();")
    browser.wait(f"!document.getElementById('{view}').hidden")


def text(browser: Browser, view: str) -> str:
    return str(browser.run(f"return document.getElementById('{view}').innerText;"))


def is_painted(browser: Browser, selector: str) -> bool:
    """Whether a canvas has colours on it."""
    script = """const canvas = document.querySelector(arguments[0]);
        if (!canvas?.width) return false;
        const image = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
        return new Set(new Uint32Array(image.data.buffer)).size > 2;"""
    return bool(browser.run(script, selector))


def click(browser: Browser, element: str) -> None:
    """Click on what an expression finds, once the page has it."""
    browser.wait(f"((found) => {{ found?.click(); return Boolean(found); }})({element})")


def until(browser: Browser, view: str, words: str) -> None:
    browser.wait(f"document.getElementById('{view}').innerText.includes({words!r})")


def test_every_view_draws_something(page: tuple[Browser, PrefixCache]) -> None:
    browser, _ = page
    expected = {
        "bytes": ["full", "swa", "evictable", "host"],
        "tree": ["everything", "nodes"],
        "walk": ["The last requests", "shop"],
        "misses": ["hit on device", "evicted", "never seen", "which pool was short"],
        "tape": ["device \u2192 host", "pool that was short"],
        "ages": ["Ages"],
        "leases": ["held", "that hold longest"],
    }
    assert set(expected) == set(VIEWS)
    for view, words in expected.items():
        show(browser, view)
        for word in words:
            until(browser, view, word)
    show(browser, "tree")
    until(browser, "tree", "rectangles")
    assert is_painted(browser, "#tree canvas")
    show(browser, "tape")
    until(browser, "tape", "evicted")
    assert is_painted(browser, "#tape canvas")
    show(browser, "misses")
    browser.wait("document.querySelector('#misses canvas')")
    assert is_painted(browser, "#misses canvas")
    assert not browser.errors()


def test_misses_are_shown_of_one_namespace_or_by_namespace(page: tuple[Browser, PrefixCache]) -> None:
    browser, _ = page
    show(browser, "misses")
    until(browser, "misses", "By namespace")
    browser.wait("[...document.querySelectorAll('#namespaces option')].some((option) => option.text === 'only shop, by cause')")
    until(browser, "misses", "hit on device")
    choose = """const choice = document.getElementById("namespaces");
        choice.value = [...choice.options].find((option) => option.text === arguments[0]).value;
        choice.dispatchEvent(new Event("change"));"""
    browser.run(choose, "only shop, by cause")
    browser.wait("document.querySelector('#misses .key').innerText.startsWith('hit\\n')")
    assert is_painted(browser, "#misses canvas")
    browser.run(choose, "what is computed, by namespace")
    browser.wait("document.querySelector('#misses .key').innerText.includes('(no namespace)')")
    assert "code" in str(browser.run("return document.querySelector('#misses .key').innerText;"))
    assert is_painted(browser, "#misses canvas")
    click(browser, "[...document.querySelectorAll('#misses tr.pick')].find((row) => row.innerText.includes('shop'))")
    browser.wait("document.getElementById('namespaces').selectedOptions[0].text === 'only shop, by cause'")
    assert not browser.errors()


def test_the_tape_says_whose_values_went_and_what_was_invalidated(page: tuple[Browser, PrefixCache]) -> None:
    browser, _ = page
    show(browser, "tape")
    until(browser, "tape", "Who lost values to whom")
    for words in ("taken from", "to make room for", "needed, no copy", "The newest 200 of"):
        until(browser, "tape", words)
    taken = """const heads = [...document.querySelectorAll("#tape .wide th")].map((head) => head.innerText);
        const rows = [...document.querySelectorAll("#tape .wide tbody tr")].map(({ cells }) => [...cells]);
        const evicted = rows.filter((row) => row[1].innerText === "evicted");
        return evicted.map((row) => row[heads.indexOf("taken from")].innerText);"""
    assert all(words.split()[-1].isdigit() for words in browser.run(taken))
    choose = "const kinds = document.querySelector('#tape select'); kinds.value = 'invalidated';"
    browser.run(choose + "kinds.dispatchEvent(new Event('change'));")
    browser.wait("document.querySelector('#tape .wide tbody')?.innerText.includes('gone')")
    assert not browser.errors()


def test_words_in_pictures_of_ages_stand_apart(page: tuple[Browser, PrefixCache]) -> None:
    """Those that a canvas draws, at their places, at a usual width."""
    browser, _ = page
    script = """const drawn = [], draw = CanvasRenderingContext2D.prototype.fillText;
        CanvasRenderingContext2D.prototype.fillText = function (words, x, y) {
            drawn.push([this.canvas, y, x, x + this.measureText(words).width]);
            return draw.call(this, words, x, y);
        };
        const ages = await import("/page/ages.js");
        const edges_s = Array.from({ length: 32 }, (_, i) => 2 ** i / 1000), pools = [];
        for (let last = 1; last < 32; last += 1) {
            const counts = edges_s.map((_, i) => (i <= last ? 1234567 : 0));
            pools.push({ component: 0, tier: 0, hit: counts, evicted: counts });
        }
        const figures = { ages: { edges_s, pools }, evicted: [], totals: {} };
        ages.update({ figures, cache: { components: [{ name: "full" }] } });
        CanvasRenderingContext2D.prototype.fillText = draw;
        const overlaps = drawn.filter(([canvas, y, from, to]) => to > 440 || drawn.some(([other, line, begin, end]) =>
            canvas === other && y === line && (from !== begin || to !== end) && from < end + 2 && begin < to + 2));
        return [drawn.length, overlaps.length];"""
    show(browser, "ages")
    words, overlaps = browser.run(script)
    assert words > 100 and overlaps == 0


def test_one_can_go_into_a_run_and_back(page: tuple[Browser, PrefixCache]) -> None:
    browser, _ = page
    show(browser, "tree")
    until(browser, "tree", "rectangles")
    into = """const canvas = document.querySelector("#tree canvas"), box = canvas.getBoundingClientRect();
        const place = { clientX: box.left + 20, clientY: box.top + 50, bubbles: true };
        canvas.dispatchEvent(new MouseEvent("click", place));"""
    browser.run(into)
    until(browser, "tree", "lengths to resume from,")
    assert "\u203a" in text(browser, "tree")
    click(browser, "document.querySelector('#tree .crumbs a')")
    browser.wait("document.querySelector('#tree .crumbs').innerText === 'everything'")
    assert not browser.errors()


def test_a_prompt_is_walked(page: tuple[Browser, PrefixCache], calm: threading.Event) -> None:
    browser, _ = page
    calm.set()
    show(browser, "walk")
    tokens = " ".join(str(ord(letter)) for letter in "system prompt of shop    ")
    script = "document.getElementById('prompt').value = arguments[0]; document.getElementById('namespace').value = 'shop';"
    browser.run(script + "document.getElementById('do-walk').click();", tokens + " 5 6 7 8 9")
    until(browser, "walk", "A prompt of 30 tokens in namespace shop")
    until(browser, "walk", "last token")
    click(browser, "document.querySelector('#walk tr.pick')")
    until(browser, "walk", "as it was admitted")
    click(browser, "[...document.querySelectorAll('#walk button')].find((button) => button.innerText.includes('again'))")
    until(browser, "walk", "The walk, now")
    assert not browser.errors()


def test_a_prompt_may_be_walked_before_the_first_figures_have_come(page: tuple[Browser, PrefixCache]) -> None:
    browser, _ = page
    browser.run(
        """import("/page/walk.js?fresh").then((view) => {
            const section = document.body.appendChild(document.createElement("section"));
            view.begin(section);
            section.querySelector("textarea").value = "1 2 3 4 5";
            performance.clearResourceTimings();  // a browser keeps only so many
            section.querySelector("#do-walk").click();
            window.fresh = { view, section, walks: walks() };
        });
        const asked = () => performance.getEntriesByType("resource");
        window.walks = () => asked().filter((each) => each.name.endsWith("/api/walk")).length;"""
    )
    browser.wait("window.fresh && walks() > window.fresh.walks")  # it was answered
    browser.run("""import("/page/api.js").then((api) => api.get("state")).then((state) => window.fresh.view.update(state));""")
    browser.wait("window.fresh.section.innerText.includes('A prompt of 5 tokens')")
    browser.run("window.fresh.section.remove()")
    assert not browser.errors()


@pytest.mark.parametrize("width", [390, 1280])
def test_old_figures_say_how_old_they_are(page: tuple[Browser, PrefixCache], width: int) -> None:
    browser, _ = page
    browser.resize(width)
    try:
        assert "live" in text(browser, "status") and "old: the cache" not in text(browser, "findings")
        browser.run("""const real = window.fetch;
            window.fetch = async (...asked) => {
                const answer = await real(...asked);
                if (!String(asked[0]).startsWith("/api/state")) return answer;
                return new Response(JSON.stringify({ ...(await answer.json()), age_s: 42 }));
            };""")
        until(browser, "status", "figures 42 s old")
        until(browser, "findings", "These figures are 42 s old: the cache has told nothing since")
        assert "live" not in text(browser, "status")
        lines = """const status = document.getElementById("status");
            return status.offsetHeight / parseFloat(getComputedStyle(status).lineHeight);"""
        assert browser.run(lines) < 2
    finally:
        browser.resize(1500, 950)


@pytest.mark.parametrize("width", [390, 768, 1280])
def test_no_view_is_wider_than_the_screen(page: tuple[Browser, PrefixCache], width: int) -> None:
    """What is wide scrolls in its own place, and the status stands in one line."""
    browser, _ = page
    browser.resize(width)
    try:
        for view in VIEWS:
            show(browser, view)
            if view == "walk":
                browser.run(
                    "document.getElementById('prompt').value = '1 2 3 4 5'; document.getElementById('do-walk').click();"
                )
                until(browser, "walk", "A prompt of 5 tokens")
            if view in ("misses", "tape"):
                browser.wait(f"document.querySelector('#{view} canvas')?.width")
            sizes = """const status = document.getElementById("status"), style = getComputedStyle(status);
                const wide = (element) => element.getBoundingClientRect().right > innerWidth + 1 && !element.closest(".scroll");
                const all = [...document.querySelectorAll("body *")], found = all.filter((one) => one.clientWidth && wide(one));
                return [document.documentElement.scrollWidth, status.offsetHeight / parseFloat(style.lineHeight),
                    found.map((element) => element.outerHTML.slice(0, 80))];"""
            scroll_width, lines, too_wide = browser.run(sizes)
            assert scroll_width <= width and lines < 2 and not too_wide, (view, scroll_width, lines, too_wide)
        assert not browser.errors()
    finally:
        browser.resize(1500, 950)


def test_every_colour_has_a_legend(page: tuple[Browser, PrefixCache], calm: threading.Event) -> None:
    """Each colour of a bar, a strip or a picture is that of a sign in its view's legend."""
    browser, _ = page
    calm.set()
    script = """const signs = [...document.querySelectorAll(`#${arguments[0]} .key i, #${arguments[0]} i.swatch`)];
        const known = new Set(signs.map((sign) => sign.style.background));
        const drawn = [...document.querySelectorAll(`#${arguments[0]} .bar i, #${arguments[0]} .strip i`)];
        return [drawn.length, drawn.map((part) => part.style.background).filter((colour) => !known.has(colour))];"""
    for view in ("bytes", "walk"):
        show(browser, view)
        browser.wait(f"document.querySelectorAll('#{view} .bar i').length")
        if view == "walk":
            click(browser, "document.querySelector('#walk tr.pick')")
            browser.wait("document.querySelector('#walk .strip')")
        count, unknown = browser.run(script, view)
        assert count and not unknown, (view, unknown)
    told = {"ages": "hit: its gap", "tree": "a length to resume from", "misses": "hit on device", "tape": "evicted"}
    for view, words in told.items():
        show(browser, view)
        browser.wait(f"document.querySelector('#{view} .key').innerText.includes({words!r})")
    assert not browser.errors()
