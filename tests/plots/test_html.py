"""The page of all results: its data, its choices, and that cells stay text."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from bench.plots import draw, html
from bench.records import tables
from bench.records.flags import FLAGS
from tests.records.examples import BASE, rate, write

SCRIPT = Path("bench/plots/page.js")
HOSTILE = "</script><script>alert(1)</script><!-- \"'&lt; \u202etxt \u2028 \x07"


def read(folder):
    return tables.latest(tables.read_rows(sorted(folder.glob("*.csv")), pytest.fail))


def lines_of(data):
    """The lines as dicts, as readLines() of the script decodes them."""
    return [dict(zip(data["columns"], cells, strict=True)) for cells in data["lines"]]


def collect(folder):
    return lines_of(html.collect(read(folder)))


def run_script(expression, **known):
    """The value of a JavaScript expression that uses the page's functions."""
    if not (node := shutil.which("node")):
        pytest.skip("no node: nothing here runs JavaScript")
    constants = "".join(f"const {name} = {json.dumps(value)};\n" for name, value in known.items())
    program = f"{SCRIPT.read_text()}\n{{ {constants} console.log(JSON.stringify({expression})) }}"
    done = subprocess.run([node, "-"], input=program, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_a_line_has_its_settings_versions_and_processes(folder):
    setup = {"num_threads": "2", "flags": "drift", "python": "3.12.3", "timestamp": "2026-11-20T10:00:00+00:00"}
    write(folder, [rate(10), rate(11) | setup | {"process_rates": "10 11 12"}])
    write(folder, [rate(30) | {"source": "https://x.org/a", "model": "vgg16", "device": "cuda"}], "p")
    published, _, own = sorted(collect(folder), key=lambda line: (line["source"] == "", line["value"]))
    assert (own["value"], own["processes"], own["date"], own["flags"]) == (11, 3, "2026-11-20", "drift")
    assert (own["size"], own["all_setup"]) == ("224 px if stated", "2 threads")
    assert (published["kind"], published["source"], published["status"]) == ("gpu", "https://x.org/a", "")


def test_rates_of_unlike_sizes_are_told_apart(folder):
    quantised = {"workload": "llm", "precision": "4-bit", "prompt_tokens": "512", "image_size": ""}
    write(folder, [{"image_size": "32"}, {"image_size": "", "source": "https://x"}, {"world_size": "2"}, quantised])
    sizes = [line["size"] for line in collect(folder)]
    assert sizes == ["32 px", "224 px if stated", "224 px if stated, 2 devices", "prompt of 512, 4-bit"]


def test_a_wrong_clock_and_a_missing_rate_are_in_words(folder):
    timed = {"throughput": "", "throughput_low": "", "throughput_high": "", "tflops": "", "seconds": "60"}
    write(folder, [timed | {"source": "https://x", "status": "cpu_time", "items": "150000"}])
    data = html.collect(read(folder))
    (line,) = lines_of(data)
    assert (line["value"], line["status"], line["stated"]) == (None, "cpu_time", "60 s for 150,000 items")
    assert {line["status"], *FLAGS} <= data["flags"].keys()


def test_cells_cannot_become_markup(folder):
    cells = ("model", "device_name", "flags", "note", "framework_version", "precision", "os", "allocator")
    hostile = dict.fromkeys(cells, HOSTILE)
    write(folder, [hostile, hostile | {"source": "javascript:alert(1)"}], "{{script}}")
    write(folder, [hostile | {"workload": "matmul"}], "__proto__")
    page = html.write_page(read(folder), folder / "index.html").read_text()
    assert page.count("<script") == page.count("</script>") == 2
    assert "innerHTML" not in page
    assert "<" not in re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1]


def test_the_script_s_scale_is_that_of_the_plots():
    assert f"const LOG_FROM = {draw.LOG_FROM};" in SCRIPT.read_text()


def test_the_address_chooses_and_the_best_of_each_machine_is_shown(folder):
    write(folder, [rate(10), rate(30) | {"precision": "tf32"}, rate(99) | {"flags": "implausible", "batch_size": "64"}])
    write(folder, [rate(500) | {"image_size": "32"}, rate(40) | {"phase": "inference"}])
    write(folder, [rate(20) | {"source": "https://x"}, rate(90) | {"source": "https://x", "status": "cpu_time"}], "b")
    data = html.collect(read(folder))

    def best(address):
        program = "bestOf(choose(readLines(data), readAddress(address)).lines)"
        return [(line["machine"], line["value"]) for line in run_script(program, data=data, address=address)]

    assert best("#phase=training") == best("") == [("a", 30), ("b", 20)]
    assert best("#phase=training&precision=float32") == [("b", 20), ("a", 10)]
    assert best("#phase=inference&model=unknown") == [("a", 40)]
    assert best("#size=32+px") == [("a", 500)]
    assert BASE["model"] in run_script("choose(readLines(data), {}).options.model", data=data)
