"""The report in a real browser: Debian's packages chromium and chromium-driver."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By

from discreet.report import write_report
from report_runs import write_run

EVIL = "<script>document.title = 'taken'<\\script>"
NAMES = ("fedavg", "signfed", "unbroken" * 16, EVIL)
FLAGS = (
    "headless",
    "no-sandbox",
    "disable-gpu",
    "disable-quic",
    "no-first-run",
    "disable-background-networking",
    "disable-component-update",
    "disable-sync",
    "disable-dev-shm-usage",
)


@pytest.fixture(scope="module")
def browser() -> Iterator[webdriver.Chrome]:
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("chromium or chromedriver is not installed")
    options = Options()
    options.binary_location = chromium
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    for flag in FLAGS:
        options.add_argument(f"--{flag}")
    chrome = webdriver.Chrome(options=options, service=Service(executable_path=driver))
    yield chrome
    chrome.quit()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for seed, name in enumerate(NAMES):
        write_run(folder / name, seed=seed, rounds=30, uplink=63_604_000 // (seed + 1), finished=seed != 2)
    return write_report([folder], folder / "report.html")


@pytest.fixture
def opened(browser: webdriver.Chrome, report: Path) -> webdriver.Chrome:
    show(browser, report, width=1200)
    return browser


def show(browser: webdriver.Chrome, report: Path, *, width: int, scheme: str = "light") -> None:
    screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    browser.get_log("browser")
    browser.get(report.as_uri())


def test_it_loads_without_errors_and_without_any_request(opened):
    assert opened.get_log("browser") == []
    assert opened.execute_script("return performance.getEntriesByType('resource').map(e => e.name)") == []
    assert "4 federated runs" in opened.title


def test_a_log_entry_would_have_been_seen(browser, tmp_path):
    page = tmp_path / "broken.html"
    page.write_text("<script>throw new Error('seen')</script>")
    show(browser, page, width=1200)
    assert any("seen" in entry["message"] for entry in browser.get_log("browser"))


def test_each_run_is_visible_by_name(opened):
    rows = opened.find_elements(By.CSS_SELECTOR, "section:first-of-type tbody th .name")
    assert [row.text for row in rows] == sorted(NAMES)
    assert all(row.is_displayed() for row in rows)
    key = opened.find_elements(By.CSS_SELECTOR, ".key .name")
    assert [entry.text for entry in key] == sorted(NAMES)


def test_a_run_named_like_a_script_does_not_run(opened):
    assert "taken" not in opened.title
    assert opened.find_elements(By.TAG_NAME, "script") == []


def test_plots_have_accessible_names_and_descriptions(opened):
    plots = opened.find_elements(By.CSS_SELECTOR, "svg[role=img]")
    assert [plot.accessible_name for plot in plots] == [
        "Accuracy by round",
        "Loss by round",
        "Accuracy by megabytes sent",
    ]
    for plot in plots:
        words = opened.execute_script(
            "return document.getElementById(arguments[0].getAttribute('aria-describedby')).textContent", plot
        )
        assert all(name in words for name in NAMES) and "is best at" in words
    loose = "svg:not([role=img]):not([aria-hidden=true])"
    assert opened.find_elements(By.CSS_SELECTOR, loose) == []


@pytest.mark.parametrize("width", [320, 375, 600, 861, 1200])
def test_only_tables_scroll_sideways(browser, report, width):
    show(browser, report, width=width)
    browser.execute_script("document.querySelectorAll('details').forEach(each => each.open = true)")
    page, seen, window = browser.execute_script(
        "const root = document.documentElement; return [root.scrollWidth, root.clientWidth, innerWidth]"
    )
    assert page == seen and window == width


def test_text_is_large_enough_on_a_phone(browser, report):
    show(browser, report, width=375)
    small = browser.execute_script(
        """
        document.querySelectorAll('details').forEach(each => each.open = true);
        const found = [];
        const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
        while (walker.nextNode()) {
            const parent = walker.currentNode.parentElement;
            if (!walker.currentNode.data.trim() || parent.closest('desc, title')) continue;
            const svg = parent.closest('svg');
            const scale = svg ? svg.getBoundingClientRect().width / svg.viewBox.baseVal.width : 1;
            const size = parseFloat(getComputedStyle(parent).fontSize) * scale;
            if (size < 13.99) found.push([size, walker.currentNode.data]);
        }
        return found;
        """
    )
    assert small == []


def test_ticks_do_not_collide_on_a_phone(browser, report):
    show(browser, report, width=375)
    overlaps = browser.execute_script(
        """
        const found = [];
        for (const frame of document.querySelectorAll('.frame')) {
            const boxes = [...frame.querySelectorAll('text')].map(t => [t.textContent, t.getBoundingClientRect()]);
            boxes.forEach(([a, p], at) => boxes.slice(at + 1).forEach(([b, q]) => {
                const wide = Math.min(p.right, q.right) - Math.max(p.left, q.left);
                const high = Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top);
                if (wide > 0 && high > 3) found.push([a, b]);
            }));
        }
        return found;
        """
    )
    assert overlaps == []


def test_ticking_a_run_fades_the_others(opened):
    opened.find_element(By.ID, "pick-1").click()
    opened.execute_script("document.getAnimations().forEach(each => each.finish())")
    # Away from the key: pointing at an entry brings that run out as well.
    opacity = opened.execute_script(
        "return [0, 1].map(at => getComputedStyle(document.querySelector('.plot .run-' + at)).opacity)"
    )
    assert opacity == ["0.1", "1"]


def test_it_follows_the_dark_mode(browser, report):
    colours = []
    for scheme in ("light", "dark"):
        show(browser, report, width=1200, scheme=scheme)
        colours.append(browser.execute_script("return getComputedStyle(document.body).backgroundColor"))
    assert colours == ["rgb(255, 255, 255)", "rgb(20, 22, 26)"]


def test_a_table_of_values_opens_below_each_plot(opened):
    details = opened.find_elements(By.TAG_NAME, "details")
    assert len(details) == 3
    details[0].find_element(By.TAG_NAME, "summary").click()
    rows = details[0].find_elements(By.CSS_SELECTOR, "tbody tr")
    assert len(rows) == 30 and rows[0].is_displayed()
