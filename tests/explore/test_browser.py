"""The page in Chromium: user actions cause no errors and no requests to other servers."""

import shutil

import pytest

from nnnorm.explore import record
from nnnorm.explore.views import Views
from tests.explore.conftest import serving

pytest.importorskip("starlette", reason="the explorer needs nnnorm[explore]")

pytestmark = pytest.mark.slow
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture(scope="module")
def browser():
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    if CHROMIUM is None:
        pytest.skip("there is no Chromium; install the system's package chromium")
    with sync_api.sync_playwright() as opened:
        chromium = opened.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def address(session):
    for work in (session.map, session.tuning, session.scan):
        work.result()
    with serving(session) as port:
        yield f"http://127.0.0.1:{port}/"


@pytest.fixture
def open_page(browser):
    """Open pages; at the end no error was logged and no request went elsewhere."""
    contexts, faults = [], []

    def open_at(url, width=1280, scheme="light"):
        context = browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme=scheme,
            reduced_motion="reduce",
            accept_downloads=True,
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(120_000)  # of a machine that is busy
        base = url.partition("#")[0]
        here = base.rpartition("/")[0]
        page.on("console", lambda one: _is_fault(one) and faults.append(one.text))
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on(
            "request",
            lambda one: (
                one.url.startswith((here, "data:", "blob:"))
                or faults.append(f"request to {one.url}")
            ),
        )
        page.goto(url)
        return page

    yield open_at
    for context in contexts:
        context.close()
    assert faults == []


def _is_fault(message):
    """A refused parameter is a line in the log of any browser, and no fault of the page."""
    return message.type in ("error", "warning") and "status of 422" not in message.text


def until(page, condition, argument=None):
    """Wait until a JavaScript expression holds; the policy of the page forbids Playwright's way."""
    for _ in range(600):
        if page.evaluate(f"argument => Boolean({condition})", argument):
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"never true: {condition}")


def shown(page, side):
    return page.eval_on_selector_all(
        f"#{side} li", "cards => cards.map(card => Number(card.dataset.item))"
    )


def test_a_typed_query_changes_the_results(open_page, address):
    page = open_page(address)
    page.wait_for_selector("#after li")
    before = shown(page, "after")
    page.keyboard.press("/")
    page.keyboard.type("a red star above a blue ring")
    page.keyboard.press("Enter")
    until(page, f"document.querySelector('#after li').dataset.item != {before[0]}")
    assert len(shown(page, "before")) == len(shown(page, "after")) == 12
    assert "text=a+red+star" in page.url
    page.fill("#ask", "a zebra")
    page.press("#ask", "Enter")
    until(page, "document.querySelector('#status').textContent.includes('zebra')")
    assert page.text_content(".asked q") == "a zebra"  # no results of another query below it
    assert page.locator("#after li").count() == 0
    page.go_back()
    until(page, "!location.hash.includes('zebra')")
    until(page, "document.querySelectorAll('#after li').length === 12")
    assert page.text_content("#status") == ""
    page.click("#after li:nth-child(2) button")
    until(page, "location.hash.includes('item=')")
    until(page, "document.querySelector('#ask').value === ''")  # no text of another search
    page.goto(f"{address}#search?query=11&method=foo")
    until(page, "document.querySelector('#status').textContent.includes('foo')")
    assert "method=foo" in page.url


def test_a_slider_changes_the_ranks_at_once_and_the_address_keeps_it(open_page, address):
    page = open_page(f"{address}#search?query=11")
    page.wait_for_selector("#after li")
    with_correction = shown(page, "after")
    page.focus("#knob-alpha")
    page.keyboard.press("Home")
    until(page, "location.hash.includes('alpha=0')")
    until(
        page,
        "JSON.stringify([...document.querySelectorAll('#after li')].map(c => c.dataset.item)) =="
        " JSON.stringify([...document.querySelectorAll('#before li')].map(c => c.dataset.item))",
    )
    assert shown(page, "before") != with_correction
    page.reload()
    page.wait_for_selector("#after li")
    assert page.input_value("#knob-alpha") == "0"
    assert shown(page, "after") == shown(page, "before")
    page.click("#automatic")
    until(page, "!location.hash.includes('alpha')")
    page.select_option("#method", "csls")
    page.wait_for_selector("#knob-reference_k")
    assert page.locator("#knob-alpha").count() == 0


def test_a_slider_that_is_dragged_writes_its_last_place_to_the_address(open_page, address):
    page = open_page(f"{address}#search?query=11")
    page.wait_for_selector("#after li")
    until(page, "document.querySelector('#commands').textContent")
    n_written = page.evaluate(
        """async () => {
          let n = 0;
          history.replaceState = () => { n += 1; throw new DOMException("", "SecurityError"); };
          const slider = document.querySelector("#knob-alpha");
          for (let place = 0; place < 60; place++) {
            slider.value = 0.025 * place;
            slider.dispatchEvent(new Event("input"));
          }
          await new Promise((resolve) => setTimeout(resolve, 400));
          delete history.replaceState;
          return n;
        }"""
    )
    assert n_written == 1
    until(page, "document.querySelector('#commands').textContent.includes('--alpha 1.475')")
    page.click("#tab-hubs")
    until(page, "location.hash.includes('alpha=1.475')")


def test_a_result_is_clicked_and_searched_with(open_page, address):
    page = open_page(f"{address}#search?query=11")
    page.wait_for_selector("#after li")
    item = shown(page, "after")[2]
    page.click("#after li:nth-child(3) button")
    until(page, f"location.hash.includes('item={item}')")
    until(page, f"document.querySelector('#before li').dataset.item == {item}")


def test_markup_in_captions_stays_text(open_page, address):
    page = open_page(f"{address}#search?query=0", width=390)
    page.wait_for_selector("#after li")
    assert "<script>" in page.text_content(".asked q")
    assert page.evaluate("window.hacked") is None
    too_wide = "document.documentElement.scrollWidth - innerWidth"
    assert page.evaluate(too_wide) <= 0  # a long word is broken
    page.goto(f"{address}#hubs?hub=0")
    page.wait_for_selector("#detail h2")
    assert page.evaluate("window.hacked") is None
    assert page.evaluate(too_wide) <= 0


def test_a_filter_is_chosen_and_may_hide_the_right_item(open_page, address, session):
    page = open_page(f"{address}#search?query=11")
    page.wait_for_selector("#after li")
    assert page.locator("#filtered-out").count() == 0
    right = session.material.metadata["background"][session.material.right_items(11)[0]]
    other = next(value for value in session.filters["background"] if value != right)
    page.click("#filters")
    page.select_option("#filter-background", other)
    until(page, "location.hash.includes('background')")
    until(page, "document.querySelector('#filters').textContent.includes(argument)", other)
    page.wait_for_selector("#filtered-out")
    assert page.text_content("#filtered-out") == "the right item is filtered out"


def test_a_hub_is_opened(open_page, address, session):
    page = open_page(f"{address}#hubs")
    page.wait_for_selector("#detail .group")
    shown = Views(session).hubs(session.open_method("nnn", {}))
    freed = (shown["hub_before"] - shown["hub_after"]).tolist()
    row = freed.index(max(freed)) + 1  # the page opens with a hub that goes away
    assert page.locator(f"tbody tr:nth-child({row}).chosen").count() == 1
    hub = page.get_attribute("tbody tr:nth-child(2) button", "data-hub")
    page.click("tbody tr:nth-child(2) button")
    until(page, f"location.hash.includes('hub={hub}')")
    page.wait_for_selector(f"tr.chosen [data-hub='{hub}']")
    assert page.evaluate("document.activeElement.dataset.hub") == hub
    name = session.material.describe_item(int(hub))
    until(page, "document.querySelector('#detail h2').textContent === argument", name)
    assert page.locator("svg.chart > path").count() == 5
    item = page.get_attribute(".thumbs button >> nth=-1", "data-key")  # never first
    page.focus(f".thumbs [data-key='{item}']")
    page.evaluate("document.querySelector('tbody tr:nth-child(3) button').click()")
    until(page, "document.querySelector('#detail h2').textContent !== argument", name)
    assert page.evaluate("document.activeElement.dataset.key") == item  # as before it was redrawn
    page.click("#detail .link >> nth=0")
    page.wait_for_selector("#after li")


def test_the_map_is_lassoed_to_a_list(open_page, address, session, tmp_path):
    page = open_page(f"{address}#map")
    page.wait_for_selector("#plane canvas")
    page.wait_for_selector("#selection h2")
    page.click("#lasso")
    box = page.locator("#plane canvas").bounding_box()
    corners = [(0.02, 0.02), (0.98, 0.02), (0.98, 0.98), (0.02, 0.98)]
    x, y = corners[0]
    page.mouse.move(box["x"] + x * box["width"], box["y"] + y * box["height"])
    page.mouse.down()
    for x, y in corners[1:]:
        page.mouse.move(box["x"] + x * box["width"], box["y"] + y * box["height"], steps=4)
    page.mouse.up()
    until(
        page,
        "document.querySelector('#selection h2').textContent.match(/^[1-9]\\d* items selected/)",
    )
    with page.expect_download() as download:
        page.click("#save-ids")
    download.value.save_as(tmp_path / "selection.txt")
    ids = (tmp_path / "selection.txt").read_text().split()
    assert len(ids) > 0.9 * len(session.gallery)
    assert int(ids[0]) == session.count_hits(None).argmax()
    page.focus("#plane canvas")
    for _ in range(9):
        page.keyboard.press("+")
    page.click("#in-view")
    until(page, f"parseInt(document.querySelector('#selection h2').textContent) < {len(ids)}")
    page.click("#selection .link")
    until(page, "document.querySelector('#selection h2').textContent === 'Nothing selected'")
    until(page, "document.activeElement.id === 'in-view'")  # its button is gone, the focus is not


def test_a_cell_of_the_heat_map_sets_k_and_alpha(open_page, address):
    page = open_page(f"{address}#quality")
    page.click('.heat [data-key="16 0.75"]')
    until(page, "location.hash.includes('reference_k=16&alpha=0.75')")
    page.wait_for_selector('.heat [data-key="16 0.75"].current')
    page.focus('.heat [data-key="16 0.75"]')
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    until(page, "location.hash.includes('alpha=0.875')")


def test_tabs_are_moved_by_the_arrow_keys(open_page, address):
    page = open_page(address)
    page.wait_for_selector("#after li")
    page.focus("#tab-search")
    page.keyboard.press("ArrowRight")
    page.wait_for_selector("#tab-hubs[aria-selected=true]")


def test_the_bias_of_the_setting_is_downloaded(open_page, address):
    page = open_page(f"{address}#search?query=11")
    page.wait_for_selector("#after li")
    page.click("details:last-of-type > summary:has-text('Export')")
    assert "nnnorm fit --gallery" in page.text_content("#commands")
    with page.expect_download() as download:
        page.click("#save-bias")
    assert download.value.suggested_filename == "bias.safetensors"


@pytest.mark.parametrize("view", ["search", "hubs", "map", "quality", "bank"])
def test_no_serious_fault_of_accessibility_and_no_sideways_scrolling(open_page, address, view):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe")
    ready = {"search": "#after li", "hubs": "#detail h2", "map": "#selection h2"}
    for width, scheme in ((1280, "light"), (390, "dark")):
        page = open_page(f"{address}#{view}", width, scheme)
        page.wait_for_selector(ready.get(view, ".tile"))
        if view == "quality":
            page.wait_for_selector(".heat button")
        wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert wide <= 0
        found = axe.Axe().run(page).response["violations"]
        serious = [
            (one["id"], [node["html"][:120] for node in one["nodes"]][:3])
            for one in found
            if one["impact"] in ("serious", "critical")
        ]
        assert serious == []


def test_the_map_follows_the_sliders_and_its_tooltip_is_whole(open_page, address):
    page = open_page(f"{address}#map", width=390)
    page.wait_for_selector("#selection h2")
    drawn = page.evaluate("document.querySelector('#plane canvas').toDataURL()")
    page.focus("#knob-alpha")
    page.keyboard.press("End")
    until(page, "document.querySelector('#plane canvas').toDataURL() !== argument", drawn)
    box = page.locator("#plane").bounding_box()
    for step in range(60):
        x, y = box["x"] + box["width"] * (1 - step / 60), box["y"] + box["height"] * 0.7
        page.mouse.move(x, y)
        if page.locator(".tip").is_visible():
            break
    tip = page.locator(".tip").bounding_box()
    assert tip["x"] >= box["x"]
    assert tip["x"] + tip["width"] <= box["x"] + box["width"]
    assert tip["y"] + tip["height"] <= box["y"] + box["height"]


def test_an_exported_page_works_from_disk(open_page, session, tmp_path):
    record(session, tmp_path / "out")
    page = open_page((tmp_path / "out" / "index.html").as_uri())
    page.wait_for_selector("#after li")
    first = shown(page, "after")
    assert page.locator("#after img").first.evaluate("image => image.decode().then(() => true)")
    page.focus("#knob-alpha")
    page.keyboard.press("End")
    until(page, "location.hash.includes('alpha=1.5')")
    until(
        page,
        "[...document.querySelectorAll('#after li')].map(c => +c.dataset.item).join() !== argument",
        ",".join(map(str, first)),
    )
    for view, ready in (
        ("hubs", "#detail .group"),
        ("map", "#selection h2"),
        ("quality", ".heat button"),
        ("bank", ".bars li"),
    ):
        page.click(f"#tab-{view}")
        page.wait_for_selector(ready)
    assert page.text_content("#status") == ""
    page.click("#tab-quality")
    page.click('.heat [data-key="16 0.375"]')  # between two recorded settings
    until(page, "/alpha=0.(25|5)&/.test(location.hash)")
    assert page.text_content("#status") == ""
    page.click("#tab-hubs")
    page.wait_for_selector("#detail .group")
    page.click("tbody tr:last-child button")  # every hub of the table is recorded
    page.wait_for_selector("tbody tr:last-child.chosen")
    assert page.text_content("#status") == ""
    for press in page.locator("#view .thumbs button, #detail .link").all()[:5]:
        press.click()  # what is not recorded is no button
        assert page.text_content("#status") == ""
        page.click("#tab-hubs")
    page.wait_for_selector("#detail .group")
    after = page.text_content("tr.chosen td:nth-child(3)")
    assert f"for {after} after." in page.text_content("#detail")
    assert page.text_content("#status") == ""
