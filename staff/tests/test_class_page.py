"""The page of a graded class: its texts, and in a browser its sorting, filter and sticky heads."""

import re
import shutil

from grading.results import FAILED, NOT_RUN, PASSED, UNKNOWN, Report, Result
from staff.classroom.marks import Lateness, Mark, Override, Row
from staff.classroom.page import LONGEST_NAME, as_page, middle_cut

import pytest

LONG = "a_very_long_name_that_a_platform_gave_to_an_archive_12345_67890"


def row(name, points, status=PASSED, **more):
    """A submission with 30 checks in 3 tasks, the first of which gave those points."""
    checks = [
        Result(f"task{task}/check{i}", "T", PASSED, 1, 1) for task in (1, 2, 3) for i in range(10)
    ]
    checks[0] = Result("task1/check0", "T", status, points, 9, diagnosis=f"diagnosis of {name}")
    return Row(name, Report(name, checks), **more)


def rows_of_a_class():
    """Thirty submissions, some of them special."""
    judged = Mark("manual/reasoning", "Reasoning", 10, 7.5, "clear")
    special = [
        row("ann", 5, FAILED, overrides={"task1/check0": Override(7, "half right")}),
        row("Bob", 0, UNKNOWN, manual=(judged,), late=Lateness("1 day late", 10)),
        row(LONG, 9, manual=(Mark("manual/reasoning", "Reasoning", 10, None),)),
        Row("dan", error="dan.zip is broken"),
        Row("eve", error="the run was interrupted", pending=True),
    ]
    return special + [row(f"student{i:02d}", i % 9, NOT_RUN) for i in range(25)]


def test_the_page_shows_sums_marks_and_what_is_missing():
    page = as_page(rows_of_a_class())
    assert "28 of 30 graded, 1 could not be graded, 1 not graded yet" in page
    assert '<td class="sum" data-value="16">16/18</td>' in page  # ann's task 1, overridden
    assert "overridden: 7 points" in page
    assert "comment: half right" in page
    assert 'title="manual/reasoning: 7.5 of 10\n  comment: clear">7.5</td>' in page
    assert "not entered yet: reasoning" in page
    assert f'title="{LONG}"' in page
    assert f">{middle_cut(LONG)}<" in page
    assert not re.search(r"(src|href)=\"(?!data:,)", page)
    assert "http" not in page.replace("http-equiv", "")


@pytest.mark.parametrize("length", [1, LONGEST_NAME, LONGEST_NAME + 1, 200])
def test_a_long_name_is_cut_in_its_middle(length):
    name = "".join(chr(ord("a") + i % 26) for i in range(length))
    cut = middle_cut(name)
    assert len(cut) == min(length, LONGEST_NAME)
    assert cut[0] == name[0]
    assert cut[-1] == name[-1]


BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")


@pytest.fixture
def browser():
    """A headless browser."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(flag)
    found = webdriver.Chrome(options, webdriver.ChromeService(DRIVER))
    found.set_page_load_timeout(60)
    yield found
    found.quit()


def look(browser, width, scheme):
    """Set the window's width and the preferred color scheme."""
    size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    feature = {"name": "prefers-color-scheme", "value": scheme}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})


@pytest.mark.slow
@pytest.mark.skipif(not (BROWSER and DRIVER), reason="no chromium and chromedriver here")
def test_the_page_in_a_browser(browser, tmp_path):
    from selenium.webdriver.common.by import By

    (tmp_path / "matrix.html").write_text(as_page(rows_of_a_class()))
    look(browser, 1280, "light")
    browser.get((tmp_path / "matrix.html").as_uri())

    def names():
        cells = browser.find_elements(By.CSS_SELECTOR, ".matrix tbody tr:not([hidden]) th")
        return [cell.get_attribute("title") for cell in cells]

    def corners(selector):
        script = "const r = document.querySelector(arguments[0]).getBoundingClientRect();"
        return browser.execute_script(f"{script} return [r.x, r.y, r.right, r.bottom]", selector)

    heads = browser.find_elements(By.CSS_SELECTOR, ".matrix thead button")
    heads[0].click()
    assert names() == sorted(names(), key=str.lower)
    heads[1].click()  # points, the most first
    assert names()[0] == LONG
    assert set(names()[-2:]) == {"dan", "eve"}
    heads[1].click()
    assert heads[1].find_element(By.XPATH, "..").get_attribute("aria-sort") == "ascending"
    assert names()[-1] == LONG
    heads[12].click()  # the sum of task 1
    assert names()[0] == LONG
    browser.find_element(By.ID, "words").send_keys("ANN")
    assert names() == ["ann"]
    assert browser.find_element(By.ID, "count").text == "1 of 30 submissions"
    browser.find_element(By.ID, "words").clear()
    for kind, found in {"late-row": ["Bob"], "missing-row": [LONG], "failed-row": ["ann"]}.items():
        browser.find_element(By.CSS_SELECTOR, f"option[value={kind}]").click()
        assert names() == found
    browser.find_element(By.CSS_SELECTOR, "option[value='']").click()

    browser.execute_script(
        "const s = document.querySelector('.scroll'); s.scrollTop = 300; s.scrollLeft = 400"
    )
    left, top, *_ = corners(".scroll")
    assert corners(".corner")[:2] == pytest.approx([left + 1, top + 1], abs=1)
    assert corners(".matrix tbody tr:last-child th")[0] == pytest.approx(left + 1, abs=1)
    assert corners(".check")[1] > corners(".corner")[1]
    assert corners(".check")[3] == pytest.approx(corners(".corner")[3], abs=2)

    background = "return getComputedStyle(document.body).backgroundColor"
    light = browser.execute_script(background)
    look(browser, 390, "dark")
    assert browser.execute_script(background) != light
    assert browser.execute_script("return document.documentElement.scrollWidth <= innerWidth")
    (name,) = [n for n in browser.find_elements(By.CSS_SELECTOR, "th[title]") if "…" in n.text]
    assert browser.execute_script("return arguments[0].offsetWidth", name) <= 0.55 * 390
    assert browser.get_log("browser") == []
