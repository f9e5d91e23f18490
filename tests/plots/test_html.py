"""The page of all results: its data, its size, that cells stay text, that its verdicts are those of make compare."""

import base64
import hashlib
import json
import re
import shutil
import subprocess
from pathlib import Path

import pandas as pd
import pytest

import compare_results
from bench.plots import draw, html
from bench.records import tables, verdict
from bench.records.flags import FLAGS
from tests.records.examples import BASE, rate, write

SCRIPT = Path("bench/plots/page.js")
HOSTILE = "</script><script>alert(1)</script><!-- \"'&lt; \u202etxt \u2028 \x07"
MATMUL = {"workload": "matmul", "phase": "", "image_size": "", "batch_size": "", "unit": "matmuls/s"}


def read(folder):
    return tables.read_rows(sorted(folder.glob("*.csv")), pytest.fail)


def page_of(folder):
    return html.write_page(read(folder), folder / "index.html").read_text()


def data_of(page):
    (found,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    return json.loads(found)


def lines_of(data):
    """The lines as dicts, as readLines() of the script decodes them."""

    def decode(column):
        of, at = column.get("of"), column.get("at", [0] * data["count"])
        return column["each"] if of is None else [of[place] for place in at]

    decoded = {name: decode(column) for name, column in data["lines"].items()}
    return [dict(zip(decoded, cells, strict=True)) for cells in zip(*decoded.values(), strict=True)]


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


def test_a_line_has_its_settings_versions_and_repetitions(folder):
    setup = {"num_threads": "2", "flags": "drift", "python": "3.12.3", "timestamp": "2026-11-20T10:00:00+00:00"}
    write(folder, [rate(10) | setup, rate(12) | setup])
    write(folder, [rate(30) | {"source": "https://x.org/a", "model": "vgg16", "device": "cuda"}], "p")
    published, own = sorted(collect(folder), key=lambda line: line["machine"], reverse=True)
    assert (own["value"], own["rows"], own["date"], own["flags"]) == (11, 2, "2026-11-20", "drift")
    assert (own["size"], own["all_setup"]) == ("224 px if stated", "2 threads")
    assert "torch 2.15, Python 3.12.3" in own["versions"]
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
    assert not line["compared"]


def test_a_machine_has_a_link_to_its_card_if_that_exists(folder):
    write(folder, [{}])
    assert data_of(page_of(folder))["machines"]["a"]["cards"] == {}
    (folder / "cards").mkdir()
    (folder / "cards" / "a-mlx.png").touch()
    assert data_of(page_of(folder))["machines"]["a"]["cards"] == {"mlx": "cards/a-mlx.png"}


def test_a_machine_has_its_limits(folder):
    peak = MATMUL | {"model": "matmul-peak", "matrix_size": "64x64x64", "device": "cuda", "precision": "float16"}
    chip = {"device_name": "NVIDIA A100-SXM4-80GB", "cpu_name": "EPYC", "memory_gb": "64"}
    stream = {"workload": "bandwidth", "model": "copy", "phase": "", "unit": "GB/s", "throughput": "40"}
    write(folder, [peak | chip | {"tflops": "250", "power_probe": "1.051"}, stream | chip])
    found = html.collect(read(folder))["machines"]["a"]
    assert found["about"] == "NVIDIA A100-SXM4-80GB, EPYC, 64 GB"
    assert ["best float16 matmul on cuda, torch", "measured", "250 TFLOP/s"] in found["limits"]
    assert ["bandwidth of cpu", "measured", "40 GB/s"] in found["limits"]
    assert ["float16 matmul on cuda: zeros over random data", "measured", "1.051"] in found["limits"]
    assert ["NVIDIA A100-SXM4-80GB, float16", "by specification", "312 TFLOP/s"] in found["limits"]


def test_cells_cannot_become_markup(folder):
    cells = ("model", "device_name", "flags", "note", "framework_version", "precision", "os", "allocator")
    hostile = dict.fromkeys(cells, HOSTILE)
    write(folder, [hostile, hostile | {"source": "javascript:alert(1)"}], "{{script}}")
    write(folder, [hostile | {"workload": "matmul", "model": "matmul-peak"}], "__proto__")
    page = page_of(folder)
    assert page.count("<script") == page.count("</script>") == 2
    assert "<" not in re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1]
    assert page.isascii()
    models = {line["model"] for line in lines_of(data_of(page))}
    assert any(model.startswith("</script><script>alert(1)</script>") for model in models)


def test_only_the_page_s_own_script_and_style_are_allowed(folder):
    write(folder, [{}])
    page = page_of(folder)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1]
    script, style = page.rsplit("<script>", 1)[1].split("</script>")[0], page.split("<style>")[1].split("</style>")[0]
    for text in (script, style):
        assert base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() in policy
    assert policy.startswith("default-src 'none'; img-src data:; ")
    assert re.findall(r"(?:src|href)=\"(?!#|data:,)", page) == []
    assert re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval", script) == []
    assert r"^https?:\/\/" in script  # the only links out of the page


def test_a_page_of_5000_rows_is_below_1_mb():
    rows = pd.concat([tables.read_rows(sorted(Path("results").glob("*.csv")), pytest.fail)] * 8, ignore_index=True)
    turn = (rows.index // (len(rows) // 8)).astype(str)
    rows = rows.assign(machine=rows["machine"] + "-" + turn, run_id=rows["run_id"] + turn)
    measured = rows.select_dtypes("number").columns
    rows[measured] = rows[measured].mul(1 + 1e-3 * (rows.index % 997), axis=0).map(lambda value: float(f"{value:.6g}"))
    data = html.collect(rows)
    assert data["count"] >= 5000
    assert len(html.render(data)) < 1_000_000


def test_a_folder_without_rows_has_a_page(folder):
    assert data_of(page_of(folder))["count"] == 0


def test_the_script_s_limits_are_those_of_make_compare():
    script = SCRIPT.read_text()
    assert f"const SAME = {verdict.SAME};" in script
    assert f"const TELLS_NOTHING = {list(compare_results.TELLS_NOTHING)};" in script
    assert f"const LOG_FROM = {draw.LOG_FROM};" in script


def test_the_verdict_is_that_of_make_compare():
    ends = [0.5, 0.98, 0.99, 0.991, 1, 1.0001, 1.009, 1.01, 1.011, 2]
    pairs = [(low, high) for low in ends for high in ends if low <= high] + [(None, None)]
    said = run_script("pairs.map(([low, high]) => verdict(low, high))", pairs=pairs)
    assert said == [verdict.judge(*ends) if None not in ends else "cannot tell" for ends in pairs]


def compare_both_ways(folder, a, b):
    """The lines of two machines compared by the page and by make compare: (work, ratio, low, high, verdict)."""
    sides = [compare_results.read_side(side, {"A": a, "B": b}, folder) for side in "AB"]
    expected = compare_results.compare(*sides)
    names = ["model", "precision", "ratio", "low", "high", "verdict"]
    expected = [tuple(row.values()) for row in expected[names].astype(object).to_dict("records")]
    program = "compareMachines(readLines(data), a, b).map((line) => names.map((name) => line[name]))"
    found = run_script(program, data=html.collect(read(folder)), a=a, b=b, names=names)
    return [tuple(row) for row in found], expected


def test_the_page_compares_as_make_compare_does(folder):
    same = {"model": "vgg16"}
    a = [rate(100), rate(102), rate(10) | same, rate(7) | {"precision": "tf32"}, rate(1) | {"batch_size": "99"}]
    a += [MATMUL | {"model": "matmul-peak", "matrix_size": "64x64x64", "tflops": "2"}]
    b = [rate(200) | {"num_threads": "2"}, rate(101, 0.001) | {"num_threads": "4"}, rate(10, 0.1) | same]
    b += [rate(5, 0.001) | {"precision": "tf32"}, rate(9) | same | {"status": "out_of_memory"}]
    b += [MATMUL | {"model": "matmul-peak", "matrix_size": "99x99x99", "tflops": "3"}]
    write(folder, a, "a")
    write(folder, b, "b")
    found, expected = compare_both_ways(folder, "a", "b")
    assert [line[-1] for line in expected] == ["cannot tell", "cannot tell", "slower", "faster"]
    for ours, theirs in zip(found, expected, strict=True):
        assert (*ours[:2], ours[-1]) == (*theirs[:2], theirs[-1])
        assert ours[2:5] == pytest.approx(theirs[2:5], rel=1e-6)
    program = 'onlyIn(compareMachines(readLines(data), "a", "b"), "b", "a")'
    assert run_script(program, data=html.collect(read(folder))) == "4 threads"


def test_the_address_chooses_and_the_best_of_each_machine_is_shown(folder):
    write(folder, [rate(10), rate(30) | {"precision": "tf32"}, rate(99) | {"flags": "implausible", "batch_size": "64"}])
    write(folder, [rate(500) | {"image_size": "32"}, rate(40) | {"phase": "inference"}])
    write(folder, [rate(20) | {"source": "https://x"}, rate(90) | {"source": "https://x", "status": "cpu_time"}], "b")
    data = html.collect(read(folder))

    def best(address):
        program = "bestOf(choose(readLines(data), readAddress(address)).lines, (line) => [line.machine])"
        return [(line["machine"], line["value"]) for line in run_script(program, data=data, address=address)]

    assert best("#phase=training") == best("") == [("a", 30), ("b", 20)]
    assert best("#phase=training&precision=float32") == [("b", 20), ("a", 10)]
    assert best("#phase=inference&model=unknown") == [("a", 40)]
    assert best("#size=32+px") == [("a", 500)]
    assert BASE["model"] in run_script("choose(readLines(data), {}).options.model", data=data)
