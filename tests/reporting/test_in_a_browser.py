"""The page of a report in a browser: nothing goes wrong, nothing is asked for, and everything answers."""

import pytest
import torch
from browser import CHROMIUM, Browser
from torch import nn

import byname

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")]


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with byname.record(model, ["0", "1", "2", "**.weight.grad", "**.bias.grad", "**.bias"], to=folder / "run.h5"):
        for _ in range(30):
            model(torch.randn(3, 4)).sum().backward()
            optimizer.step()
    cka = byname.analyse.Similarity()
    with byname.observe(model, ["0", "1"], cka):
        model(torch.randn(30, 4))
    loss = model(torch.randn(3, 4)).sum()
    drawing = byname.draw(model, example=torch.randn(3, 4))
    hostile = byname.Finding("free-leaf", "<img src=x onerror='window.hit = 1'><script>window.hit = 1</script>")
    things = [drawing, folder / "run.h5", byname.census(), cka, byname.summary(model, torch.randn(3, 4)), hostile]
    return byname.report(*things, byname.saved(loss), to=folder / "report.html")


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture
def browser(started, file):
    started.open(file)
    yield started
    assert started.errors == []
    assert {url.partition("#")[0] for url in started.requests} <= {file.absolute().as_uri(), "data:,"}
    assert started.get("window.hit") is None


def drawn(browser, selector):
    """Scrolls to a canvas, and waits until something is drawn in it."""
    browser.get(f"document.querySelector({selector!r}).scrollIntoView()")
    pixels = (
        f"(c => c.getContext('2d').getImageData(0, 0, c.width, c.height).data)(document.querySelector({selector!r}))"
    )
    browser.until(f"new Set({pixels}).size > 2")
    return pixels


def test_curves_answer_to_the_keyboard(browser):
    drawn(browser, ".place .plot canvas")
    browser.get("document.querySelector('.place .plot').focus()")
    browser.press("Home")
    words = "document.querySelector('.place .readout').textContent"
    assert browser.get(words).startswith("iteration 0: median")
    browser.press("ArrowRight")
    assert browser.get(words).startswith("iteration 1: median")
    browser.press("End")
    assert browser.get(words).startswith("iteration 29: median")


def test_the_slider_shows_another_moment(browser):
    pixels = drawn(browser, ".heat canvas")
    before = browser.get(f"[...{pixels}].join()")
    browser.get("document.querySelector('.heat input[type=range]').focus()")
    browser.press("Home")
    assert browser.get(f"[...{pixels}].join()") != before
    assert browser.get("document.querySelector('.heat label b').textContent") == "0"


def test_a_vector_over_the_run_is_one_picture(browser):
    drawn(browser, "[data-name='0.bias'] .heat canvas")
    assert browser.get("document.querySelector(\"[data-name='0.bias'] .heat canvas\").width") == 30


def test_a_search_leaves_the_rows_and_plots_that_fit(browser):
    places = (
        "[...document.querySelectorAll('.place')].filter(one => one.checkVisibility()).map(one => one.dataset.name)"
    )
    rows = "[...document.querySelectorAll('#section-2 tbody tr')].filter(one => !one.hidden).map(one => one.cells[0].textContent)"
    search = "document.querySelector('#section-2 input[type=search]')"
    assert len(browser.get(places)) == len(browser.get(rows)) == 9
    browser.get(f"{search}.value = 'Grad 2.W'; {search}.dispatchEvent(new Event('input'))")
    assert browser.get(places) == browser.get(rows) == ["2.weight.grad"]
    assert browser.get("document.querySelector('#section-2 output').textContent") == "1 of 9"


def test_sorting_goes_by_the_numbers(browser):
    table = "document.querySelector('#section-3 table')"
    column = browser.get(f"[...{table}.tHead.rows[0].cells].findIndex(one => one.textContent === 'bytes')")
    values = f"[...{table}.tBodies[0].rows].map(one => Number(one.cells[{column}].dataset.v))"
    head = f"{table}.tHead.rows[0].cells[{column}]"
    browser.get(f"{head}.querySelector('button').click()")
    assert browser.get(values) == sorted(browser.get(values), reverse=True)
    browser.get(f"{head}.querySelector('button').click()")
    assert browser.get(values) == sorted(browser.get(values))
    assert browser.get(f"{head}.getAttribute('aria-sort')") == "ascending"


def test_the_areas_of_memory_fill_their_box_and_can_be_grouped_anew(browser):
    browser.get("document.querySelector('#section-3 .map').scrollIntoView()")
    areas = "[...document.querySelectorAll('#section-3 .map [role=listitem]')]"
    browser.until(f"{areas}.length > 3")
    covered = f"{areas}.reduce((all, one) => all + one.offsetWidth * one.offsetHeight, 0)"
    box = "(one => one.clientWidth * one.clientHeight)(document.querySelector('#section-3 .map'))"
    assert 0.8 < browser.get(f"{covered} / {box}") < 1.05
    browser.get(
        "[...document.querySelectorAll('#section-3 .controls button')].find(one => one.textContent === 'dtype').click()"
    )
    assert browser.get("document.querySelector('#section-3 .map .group').textContent").startswith("float32")


def test_the_drawing_leads_to_the_plots(browser):
    link = "document.querySelector('#section-1 a[data-path=\"1\"]')"
    browser.get(f"{link}.dispatchEvent(new MouseEvent('click', {{ bubbles: true, cancelable: true }}))")
    assert browser.get("document.querySelector(':target').dataset.name") == "1"


def test_the_theme_follows_the_system_and_the_button(browser, file):
    page = "getComputedStyle(document.body).backgroundColor"
    light = browser.get(page)
    browser.open(file, dark=True)
    dark = browser.get(page)
    assert dark != light
    browser.get("document.getElementById('theme').click()")
    assert browser.get(page) == light
    browser.get("localStorage.clear()")


@pytest.mark.parametrize("width", [360, 700, 1500])
def test_the_page_fits_the_screen(browser, file, width):
    browser.open(file, width)
    browser.get("document.querySelectorAll('.place, .areas, .strips').forEach(one => one.scrollIntoView())")
    assert browser.get("document.documentElement.scrollWidth") <= width


def test_a_page_of_a_run_that_goes_on_follows_it(browser, tmp_path):
    def written(value, refresh=0.2):
        series = byname.Series("loss", [value], [0], [0], [0], ["train"], [()])
        return byname.report(series, to=tmp_path / "live.html", refresh=refresh)

    browser.open(written(1.0))
    written(2.0)
    browser.until("JSON.parse(document.querySelector('script[type]').textContent).curves[0].figures[0][0] === 2")
    written(3.0, refresh=None)
    browser.until("document.readyState === 'complete' && !document.documentElement.dataset.refresh")
    browser.requests.clear()


def test_a_picture_that_would_be_of_one_colour_has_its_own_colours(browser, tmp_path):
    pattern = torch.tensor([[1.0, -1.0], [0.5, 0.0]])

    def own_colours(last):
        values = [pattern, last * pattern]
        series = byname.Series("x.grad", values, [0, 1], [0, 0], [0, 0], ["train"] * 2, [(2, 2)] * 2)
        browser.open(byname.report(series, to=tmp_path / "faded.html"))
        pixels = drawn(browser, ".heat canvas")
        colours = browser.get(f"new Set([0, 4, 8, 12].map(at => {pixels}.slice(at, at + 3).join())).size")
        return browser.get("document.querySelector('.heat input[type=checkbox]').checked"), colours

    assert own_colours(1e-6) == (True, 4)
    assert own_colours(0.5)[0] is False
    browser.requests.clear()


def test_a_tall_picture_is_no_taller_than_twice_its_width(browser, tmp_path):
    series = byname.Series("x", [torch.randn(64, 4)] * 2, [0, 1], [0, 0], [0, 0], ["train"] * 2, [(64, 4)] * 2)
    browser.open(byname.report(series, to=tmp_path / "tall.html"))
    drawn(browser, ".heat canvas")
    height, width = (
        browser.get(f"document.querySelector('.heat canvas').client{side}") for side in ("Height", "Width")
    )
    assert 0 < height <= 2 * width + 2
    browser.requests.clear()


def test_on_paper_everything_is_drawn(browser):
    areas = "[...document.querySelectorAll('.map')].map(one => one.childElementCount > 0)"
    drawn_at_once = browser.get(f"(() => {{ dispatchEvent(new Event('beforeprint')); return {areas}.join(); }})()")
    assert set(drawn_at_once.split(",")) == {"true"}
    browser.until("[...document.querySelectorAll('.plot canvas')].every(one => one.width !== 300)")
    assert browser.get("document.documentElement.dataset.theme") == "light"
    browser.get("dispatchEvent(new Event('afterprint'))")
    assert browser.get("document.documentElement.dataset.theme") is None
