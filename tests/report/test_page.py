"""The page of a report: escaped, self-contained, and alive in a real browser where there is one."""

import json
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from codecl.report.write import write_report
from tests.report.cases import FIRST, SECOND, epoch, task, write_run

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
BETWEEN = [[82.0, None], [75.0, 91.0]]  # ACC 83
VERSIONS = {"codecl": "0.1.0", "torch": "2.13.0", "python": "3.11.7"}
HOSTILE = "<img src=x onerror=alert(1)> & \"quoted\" 'too'</script>"
TRY = """
<script>
const table = document.querySelector("#table-results table");
const names = () => [...table.tBodies[0].rows].map((row) => row.cells[0].textContent);
const heads = [...table.tHead.rows[0].cells];
const press = (name) => {
  const head = heads.find((head) => head.textContent === name);
  head.querySelector("button").click();
  return [name, head.getAttribute("aria-sort"), names()];
};
const seen = [["", "", names()], press("ACC %"), press("ACC %"), press("method"), press("BWT %")];
const run = table.querySelector("td a").getAttribute("href").slice(1);
location.hash = run;
addEventListener("hashchange", () => {
  const ids = [...document.querySelectorAll("[id]")].map((element) => element.id);
  const said = document.createElement("pre");
  said.id = "said";
  said.textContent = JSON.stringify({
    seen,
    buttons: heads.every((head) => head.querySelector("button").tabIndex === 0),
    sorted: heads.filter((head) => head.getAttribute("aria-sort") !== "none").length,
    open: document.getElementById(run).open,
    images: document.images.length,
    width: document.querySelector("figure svg").getBoundingClientRect().width,
    twice: ids.length - new Set(ids).size,
  });
  document.body.append(said);
});
</script>
"""
WIDE = """
<script>
const regions = [...document.querySelectorAll(".scroll")];
const said = document.createElement("pre");
said.id = "said";
said.textContent = JSON.stringify({
  window: innerWidth,
  tables: regions.length,
  wide: regions.filter((one) => one.scrollWidth > one.clientWidth).map((one) => one.ariaLabel),
});
document.body.append(said);
</script>
"""


class Elements(HTMLParser):
    """The names of all elements, the addresses they point to, and all texts."""

    def __init__(self, page):
        super().__init__()
        self.names, self.addresses, self.texts, self.handlers = [], [], [], []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.names.append(tag)
        self.addresses += [value for name, value in attributes if name in ("src", "href", "xlink:href", "action")]
        self.handlers += [name for name, _ in attributes if name.startswith("on")]

    def handle_data(self, data):
        self.texts.append(data)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    log = [epoch(0, 1), task(0, 0.25), epoch(1, 1), task(1, 0.75)]
    write_run(folder / "runs/gpm", "gpm", FIRST, log=log)
    write_run(
        folder / f"runs/{HOSTILE.replace('/', '')}",
        "code-cl",
        SECOND,
        result={"versions": VERSIONS | {"torch": HOSTILE}},
    )
    write_run(folder / "runs/sgp", "sgp", BETWEEN, result={"versions": VERSIONS | {HOSTILE: HOSTILE}})
    write_run(folder / "runs/all", "multitask", [[95.0, 97.0]])
    write_run(folder / "runs/<b>", "gpm", seed=3, recipe_only=True)
    write_report([folder / "runs"], folder / "out")
    return folder / "out/report.html"


def test_everything_is_escaped_and_nothing_is_fetched(page):
    found = Elements(page.read_text())
    assert found.names.count("script") == 1
    assert not {"img", "b", "iframe", "object"} & set(found.names)
    assert not found.handlers
    assert all(address.startswith("#") or address == "data:," for address in found.addresses)
    assert "../runs/<b>" in found.texts
    assert any(HOSTILE in words for words in found.texts)


def test_the_page_has_the_recipe_versions_and_seeds_of_every_run(page):
    found = Elements(page.read_text())
    words = " ".join(found.texts)
    for recipe in (page.parents[1] / "runs").glob("*/recipe.toml"):
        if (recipe.parent / "result.json").exists():
            assert recipe.read_text() in found.texts
    assert found.names.count("details") == 4
    assert "codecl 0.1.0, torch 2.13.0, python 3.11.7" in words
    assert "seeds 0." in words


def in_browser(page, script, folder):
    """What ``script`` says in the element ``said`` of the page, in a window of 1280 pixels."""
    tried = folder / "tried.html"
    tried.write_text(page.replace("</body>", f"{script}</body>"))
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
    flags += ["--disable-component-update", "--disable-sync", "--enable-logging=stderr", "--window-size=1280,900"]
    command = [BROWSER, *flags, f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=2000", "--dump-dom"]
    ended = subprocess.run([*command, tried.as_uri()], capture_output=True, text=True, timeout=90, check=True)
    assert "CONSOLE" not in ended.stderr
    _, _, rest = ended.stdout.partition('<pre id="said">')
    return json.loads(rest.partition("</pre>")[0])


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
def test_all_tables_of_the_committed_report_fit_1280_pixels(tmp_path):
    page = (Path(__file__).parents[2] / "results/report/report.html").read_text()
    said = in_browser(page, WIDE, tmp_path)
    assert said["window"] == 1280
    assert said["tables"] > 5
    assert said["wide"] == []


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
def test_the_page_works_in_a_browser(page, tmp_path):
    said = in_browser(page.read_text(), TRY, tmp_path)
    assert said["seen"] == [
        ["", "", ["multitask", "code-cl", "sgp", "gpm"]],
        ["ACC %", "descending", ["multitask", "code-cl", "sgp", "gpm"]],
        ["ACC %", "ascending", ["gpm", "sgp", "code-cl", "multitask"]],
        ["method", "ascending", ["code-cl", "gpm", "multitask", "sgp"]],
        ["BWT %", "descending", ["code-cl", "sgp", "gpm", "multitask"]],  # multitask has none
    ]
    assert said["width"] > 200
    checked = {name: said[name] for name in ("buttons", "sorted", "open", "images", "twice")}
    assert checked == {"buttons": True, "sorted": 1, "open": True, "images": 0, "twice": 0}
