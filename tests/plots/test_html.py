"""The page of all results: its data, its choices, and that cells stay text."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from bench.plots import html
from bench.records import tables
from tests.rows import GPU, LARGE, LLM, PEAK, rate, write

SCRIPT = Path("bench/plots/page.js")
HOSTILE = "</script><script>alert(1)</script><!-- \"'&lt; \u202etxt \u2028 \x07"

# Acts on a page that just fits its view, and tells of it after each act. Scroll bars take space, as on Linux.
TRIAL = """<style>::-webkit-scrollbar { width: 15px }</style><script>
async function trial() {
  const {style, dataset} = document.body, loading = document.createElement("iframe"), told = [];
  document.body.append(loading);
  loading.contentDocument.open(); // the browser waits until it is closed
  style.paddingTop = `${innerHeight - document.documentElement.offsetHeight}px`;
  await new Promise((done) => new ResizeObserver(done).observe(at("bars"))); // the first picture
  for (const act of [ACTS]) {
    const drawn = new Promise((done) => new MutationObserver(done).observe(at("bars"), {childList: true}));
    act();
    await drawn;
    told.push(TOLD);
  }
  dataset.told = told.join("; ");
  loading.contentDocument.close();
}
trial();
</script></body>"""
DETAILS = """() => document.querySelector("td button").click(), () => { style.width = "400px"; },
    () => document.querySelector("th button").click(), () => location.replace("#q=a")"""
OPEN = '`${innerWidth - document.documentElement.clientWidth}:${document.querySelectorAll("dl").length}`'
SEARCHES = """...["#q=5070", "#q=EXAMPLE-GPU+fine-tuning", "#workload=llm&q=", "#a=a&b=b"].map((hash) => () => {
    location.replace(hash);
    render(); // again when the browser tells of the new address
  })"""
SEEN = """(copy(), [at("none").hidden, document.querySelectorAll("circle, rect").length, at("heading").innerText,
      at("count").innerText, at("markdown").value.replaceAll(/\\n/g, " ")].join(" | "))"""


def read(folder):
    return tables.latest(tables.read_rows(sorted(folder.glob("*.csv")), pytest.fail))


def test_a_line_has_its_settings_and_sizes_that_cannot_be_compared_are_told_apart(folder):
    setup = {"num_threads": "2", "flags": "drift", "timestamp": "2026-11-20T10:00:00+00:00"}
    quantised = {"workload": "llm", "precision": "4-bit", "prompt_tokens": "512", "image_size": ""}
    write(folder, [{"image_size": "32"}, {"image_size": "", "source": "https://x.org/a"}, {"world_size": "2"}])
    write(folder, [quantised | {"source": "https://x.org/b"}, rate(11) | setup | {"process_rates": "10 11 12"}])
    data = html.collect(read(folder))
    lines = [dict(zip(data["columns"], cells, strict=True)) for cells in data["lines"]]
    sizes = {("32 px", ""), ("224 px", ""), ("224 px, 2 processes", ""), ("prompt of 512", "4-bit")}
    assert {(line["size"], line["weights"]) for line in lines} == sizes
    (own,) = [line for line in lines if line["value"] == 11]
    assert (own["processes"], own["date"], own["flags"], own["all_setup"]) == (3, "2026-11-20", "drift", "2 threads")


def test_cells_cannot_become_markup(folder):
    cells = ("model", "device_name", "note", "framework_version", "os", "allocator")
    hostile = dict.fromkeys(cells, HOSTILE)
    published = {"source": "javascript:alert(1)", "framework": HOSTILE, "precision": "{{script}}"}
    write(folder, [hostile | {"model": "__proto__"}, hostile | published])
    write(folder, [hostile | {"workload": "matmul"}], "constructor")
    page = html.write_page(read(folder), folder / "index.html").read_text()
    assert page.count("<script") == page.count("</script>") == 2
    assert "innerHTML" not in page
    assert "<" not in re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1]


def run_script(lines, expression):
    """What an expression of the page's script gives, for the page's `data`."""
    if not (node := shutil.which("node")):
        pytest.skip("no node: nothing here runs JavaScript")
    program = f"{SCRIPT.read_text()}\ndata = {json.dumps(html.collect(lines))};\n"
    program += f"console.log(JSON.stringify({expression}))"
    return json.loads(subprocess.run([node, "-"], input=program, capture_output=True, text=True, check=True).stdout)


def test_the_address_chooses_and_the_best_of_each_machine_is_shown(folder):
    write(folder, [rate(10), rate(30) | {"precision": "tf32"}, rate(99) | {"flags": "implausible", "batch_size": "64"}])
    write(folder, [rate(500) | {"image_size": "32"}, rate(40) | {"phase": "inference"}])
    write(folder, [rate(20) | {"source": "https://x"}, rate(90) | {"source": "https://x", "status": "cpu_time"}], "b")
    lines = read(folder)

    def best(address):
        chosen = run_script(lines, f"bestOf(choose(readLines(data), readAddress({json.dumps(address)})).lines)")
        return [(line["machine"], line["value"]) for line in chosen]

    assert best("#phase=training") == best("") == [("a", 30), ("b", 20)]
    assert best("#phase=training&precision=float32") == [("b", 20), ("a", 10)]
    assert best("#phase=inference&model=unknown") == [("a", 40)]
    assert best("#size=32+px") == [("a", 500)]


def test_an_own_peak_is_side_by_side_with_another_one_of_any_size(folder):
    write(folder, [PEAK | LARGE | {"tflops": 2.0}])
    write(folder, [PEAK | {"tflops": 4.0}, PEAK | {"tflops": 9.0, "source": "https://x", "model": "another"}], "b")
    pairs = run_script(read(folder), 'pairUp(readLines(data), ["a", "b"])')
    assert [[(pair.get(side) or {}).get("value") for side in "ab"] for pair in pairs if pair.get("a")] == [[2, 4]]


def test_a_search_ignores_sources_and_opens_on_own_results(folder):
    write(folder, [rate(10) | {"phase": "inference"}, rate(20) | {"scope": "input", "phase": "inference"}])
    write(folder, [rate(30) | {"source": "https://a-b", "workload": "mlp", "model": "mlp-64"}], "b")
    found = run_script(read(folder), 'search(readLines(data), "resnet-50")')
    assert [line["value"] for line in found] == [10, 20]
    assert run_script(read(folder), 'search(readLines(data), "https")') == []
    assert run_script(read(folder), "choose(readLines(data), {q: ' '}).chosen.scope") == "device"


def test_the_mean_of_uneven_rows_is_known(folder):
    write(folder, [rate(10) | {"items": 90, "seconds": 10, "flags": "uneven"}, rate(20) | {"precision": "tf32"}])
    lines = run_script(read(folder), "readLines(data)")
    assert {line["value"]: line["mean"] for line in lines} == {10: 9, 20: None}


def show(page, acts, told):
    """What a browser tells of a page."""
    # In /usr/bin, because a snap cannot read the files of a test.
    if not (browser := shutil.which("google-chrome", path="/usr/bin") or shutil.which("chromium", path="/usr/bin")):
        pytest.skip("neither google-chrome nor chromium in /usr/bin: nothing here shows a page")
    trial = TRIAL.replace("ACTS", acts).replace("TOLD", told)
    page.write_text(page.read_text().replace("</body>", trial))
    options = ["--headless", "--no-sandbox", f"--user-data-dir={page.parent}", "--window-size=1200,1000"]
    command = [browser, *options, "--timeout=60000", "--dump-dom", page.as_uri()]
    dom = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return re.search('data-told="([^"]*)"', dom)[1].split("; ")


def test_details_stay_open_until_they_are_closed(folder):
    write(folder, [rate(10)])
    page = html.write_page(read(folder), folder / "index.html")
    assert show(page, DETAILS, OPEN) == ["15:1"] * 4  # width of the scroll bar, open details


def test_a_search_reaches_the_chart_and_two_machines_are_side_by_side(folder):
    prefill, decode = LLM | {"phase": "prefill", "prompt_tokens": "512"}, LLM | {"phase": "decode", "depth": "0"}
    write(folder, [rate(10), rate(80) | prefill, rate(5) | decode, rate(3) | LLM])
    write(folder, [rate(25), rate(8) | decode | {"depth": "9"}, rate(6) | LLM | {"lora_rank": "8"}], "b")
    write(folder, [rate(40) | GPU, rate(30) | LLM | GPU], "example-gpu")
    nothing, gpu, llm, pair = show(html.write_page(read(folder), folder / "index.html"), SEARCHES, SEEN)
    assert nothing.startswith("false | 0 | ")
    assert all(words in gpu for words in ("| 1 | ResNet-50", "language models (1)"))
    assert "| 2 | smollm2-135m, prefill, decode |" in llm
    assert all(words in pair for words in ("| 0 | a and b |", "| 2.5 |"))
