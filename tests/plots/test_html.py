"""The page of all results: its data, its choices, and that cells stay text."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from bench.plots import html
from bench.records import tables
from tests.rows import LLM, MATMUL, PEAK, rate, write

SCRIPT = Path("bench/plots/page.js")
HOSTILE = "</script><script>alert(1)</script><!-- \"'&lt;"


def read(folder):
    return tables.latest(tables.combine(tables.load(sorted(folder.glob("*.csv")), pytest.fail)))


def test_the_committed_page_has_the_script_of_now():
    assert SCRIPT.read_text(encoding="utf-8") in Path("results/index.html").read_text(encoding="utf-8")


def test_a_line_names_its_work_and_other_work_has_another_name(folder):
    setup = {"num_threads": "2", "flags": "swapping", "timestamp": "2026-11-20T10:00:00+00:00"}
    quantised = {"workload": "llm", "precision": "4-bit", "prompt_tokens": "512", "image_size": ""}
    alike = MATMUL | {"precision": "int8", "source": "https://x.org/b"}
    write(folder, [{"image_size": "32"}, {"image_size": "", "source": "https://x.org/a"}, {"world_size": "2"}])
    write(folder, [quantised | {"source": "https://x.org/b"}, rate(11) | setup | {"processes": 3}])
    write(folder, [alike, alike | {"model": "matmul-8bit"}])
    data = html.collect(read(folder))
    lines = [dict(zip(data["columns"], cells, strict=True)) for cells in data["results"]]
    assert len({line["work"] for line in lines}) == 6
    (own,) = [line for line in lines if line["value"] == 11]
    assert own["work"] in [line["work"] for line in lines if line["source"] == "https://x.org/a"]
    cells = {"processes": 3, "date": "2026-11-20", "disturbed": "disturbed", "all_setup": "2 threads", "how": "torch"}
    assert own | cells == own


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


def run_script(lines, expression, before=""):
    """Return the value of an expression in the page's script, for the page's `data` and after other statements."""
    if not (node := shutil.which("node")):
        pytest.skip("no node: nothing here runs JavaScript")
    program = f"{SCRIPT.read_text()}\ndata = {json.dumps(html.collect(lines))};\n{before}\n"
    program += f"console.log(JSON.stringify({expression}))"
    return json.loads(subprocess.run([node, "-"], input=program, capture_output=True, text=True, check=True).stdout)


def test_the_page_opens_on_the_work_of_most_machines_and_the_address_chooses_another(folder):
    write(folder, [rate(10), rate(30) | {"memory_format": "channels_last"}, rate(40) | {"phase": "inference"}])
    write(folder, [rate(500) | {"image_size": "32"}])
    write(folder, [rate(20) | {"source": "https://x"}, rate(90) | {"source": "https://x", "status": "cpu_time"}], "b")
    write(folder, [PEAK | {"machine": machine, "tflops": 4.0} for machine in "abcd"], "c")
    lines = read(folder)

    def shown(address):
        found = run_script(lines, f"choose(readResults(data), readAddress({json.dumps(address)})).results")
        return [(line["machine"], line["value"]) for line in found]

    assert shown("") == shown("#work=unknown") == [("b", 90), ("a", 30), ("b", 20), ("a", 10)]
    assert shown("#work=ResNet-50, inference, batch 16, float32") == [("a", 40)]
    assert shown("#phase=inference&model=unknown") == [("a", 40)]
    assert len(shown("#phase=training")) == 5  # several works


def test_a_search_finds_words_that_begin_with_what_was_typed(folder):
    write(folder, [rate(10) | {"phase": "inference"}, rate(20) | {"scope": "input", "phase": "inference"}])
    write(folder, [rate(30) | {"source": "https://a-b", "workload": "mlp", "model": "mlp-64"}], "b")
    quantised = rate(40) | LLM | {"weight_bits": "8", "batch_size": "4", "device": "mps", "device_name": "Apple M4 Max"}
    write(folder, [quantised, rate(50) | {"device": "mps", "device_name": "Apple M4 Pro", "model": "resnet18"}], "c")

    def found(text):
        return [line["value"] for line in run_script(read(folder), f"search(readResults(data), {json.dumps(text)})")]

    assert (found("resnet-50"), found("mlp"), found("https")) == ([10, 20], [30], [])
    assert (found("m4 pro"), found("m4 p"), found("m4 pr train")) == ([50], [40, 50], [])
    assert (found("4 bits"), found("8 bits"), found("resnet 18"), found("ResNet18")) == ([], [40], [50], [50])
    assert (found("8-bit"), found("8 b"), found("geforce m4 max")) == ([40], [40], [40])


def test_a_browser_shows_what_the_address_asks_for(folder):
    # In /usr/bin, because a snap cannot read the files of a test.
    if not (browser := shutil.which("google-chrome", path="/usr/bin") or shutil.which("chromium", path="/usr/bin")):
        pytest.skip("neither google-chrome nor chromium in /usr/bin: nothing here shows a page")
    write(folder, [rate(10), rate(30) | {"workload": "mlp", "model": "mlp-64"}])
    page = html.write_page(read(folder), folder / "index.html")
    options = ["--headless", "--no-sandbox", f"--user-data-dir={folder.parent}", "--timeout=60000", "--dump-dom"]
    command = [browser, *options, f"{page.as_uri()}#q=mlp"]
    assert "1 of 2 results" in subprocess.run(command, capture_output=True, text=True, check=True).stdout
