"""The pages in a real browser: keys, taps, narrow windows, dark colours, and the policy that they obey."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from beam_pipeline.verbs import prepare
from tests.beam_pipeline.browsing.chromium import Chromium, program
from tests.beam_pipeline.browsing.conftest import Client
from tests.beam_pipeline.runs import arguments

pytestmark = pytest.mark.skipif(
    program() is None, reason="there is no Chromium here (Debian's package chromium)"
)

PAGES = ("", "rows", "rows?text=a", "row/train/7", "documents", "document/train/0/3", "nothing")
_CONTRAST = """
(() => {
  const parts = (colour) => colour.match(/[0-9.]+/g).slice(0, 3).map((value) => {
    const share = value / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  const light = (colour) => parts(colour).reduce((sum, part, index) => sum + part * [0.2126, 0.7152, 0.0722][index], 0);
  const page = light(getComputedStyle(document.body).backgroundColor);
  return [...document.querySelectorAll("h1, p, dd, dt, small, footer span, .top a")].map((element) => {
    const [low, high] = [page, light(getComputedStyle(element).color)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  }).reduce((a, b) => Math.min(a, b));
})()
"""


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    browser = Chromium(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture
def page(chromium: Chromium) -> Iterator[Chromium]:
    """The browser; its console must have shown no error at the end of the test."""
    chromium.problems.clear()
    yield chromium
    assert [problem for problem in chromium.problems if "404" not in problem] == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_pages_fit_a_phone_and_are_readable(page: Chromium, client: Client, dataset: Path, dark: bool):
    for url in (*(client.url + path for path in PAGES), (dataset / "report.html").as_uri()):
        page.open(url, width=390, dark=dark)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, url
        assert page.evaluate(_CONTRAST) >= 4.5, url
    assert page.evaluate("getComputedStyle(document.body).backgroundColor").startswith(
        "rgb(2" if not dark else "rgb(20,"
    )


def test_long_paths_of_bad_records_fit_a_phone(
    page: Chromium, serve: Callable[[Path], Client], tokenizer_folder: Path, tmp_path: Path
):
    source, out = tmp_path / f"{'long_' * 20}.jsonl", tmp_path / ("out" * 20)
    source.write_text('{"text": "fine"}\n{"text": 7}\n')
    options = ["--on_bad_record", "skip", "--max_bad_ratio", "1"]
    prepare.main(arguments(source, tokenizer_folder, out, *options))
    page.open(serve(out).url + "bad", width=390)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_keys_page_and_search(page: Chromium, client: Client):
    page.open(f"{client.url}row/train/7")
    page.press("ArrowRight")
    page.wait("location.pathname.endsWith('/row/train/8') && document.readyState === 'complete'")
    page.press("ArrowLeft")
    page.wait("location.pathname.endsWith('/row/train/7') && document.readyState === 'complete'")
    page.press("/")
    assert page.evaluate("document.activeElement.type") == "search"
    page.call("Input.insertText", text="a")
    page.press("ArrowLeft")
    assert page.evaluate("document.querySelector('input[type=search]').value") == "a"
    assert page.evaluate("location.pathname").endswith("/row/train/7")
    page.evaluate("document.querySelector('.top form').requestSubmit()")
    page.wait("location.search === '?text=a' && document.readyState === 'complete'")
    page.press("ArrowRight")
    page.wait("location.search.includes('first=')")


def test_a_token_that_is_pointed_at_or_tapped_is_described_and_t_hides_the_tokens(
    page: Chromium, client: Client
):
    page.open(f"{client.url}row/train/7")
    colour = "getComputedStyle(document.querySelector('.text i')).backgroundColor"
    coloured = page.evaluate(colour)
    for type_ in ("pointerover", "click"):
        page.evaluate(
            f"document.querySelectorAll('.text i')[2].dispatchEvent(new Event('{type_}', {{bubbles: true}}))"
        )
        assert page.evaluate("document.getElementById('token').textContent").startswith("id ")
        page.evaluate(f"document.body.dispatchEvent(new Event('{type_}', {{bubbles: true}}))")
        assert page.evaluate("document.getElementById('token').textContent") == ""
    page.press("t")
    assert page.evaluate(colour) == "rgba(0, 0, 0, 0)" != coloured
    page.open(f"{client.url}row/train/8")
    assert page.evaluate(colour) == "rgba(0, 0, 0, 0)"
    page.press("t")
    assert page.evaluate(colour) == coloured
