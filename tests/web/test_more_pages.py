"""Clusters with bundles, switches between BookKeeper clusters, and reports."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET

import pytest
from deltalake import DeltaTable

from anabranch.auth.callers import Access
from anabranch.auth.tokens import add_token
from tests.query.views.recorded_cluster import BROKERS, recorded_cluster
from tests.query.views.recorded_switch import TAKEN, SwitchStory
from tests.web.pages import page, table_of


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    return str(recorded_cluster().write(tmp_path_factory.mktemp("bundles") / "lake"))


def test_move_of_a_bundle_is_headed_in_words(lake):
    decisions = DeltaTable(f"{lake}/decisions").to_pyarrow_table(columns=["decision_id", "arguments"]).to_pylist()
    arguments = json.loads(decisions[0]["arguments"])
    heading = re.search("<h1>.*?</h1>", page(lake).get(f"/decision?id={decisions[0]['decision_id']}").text)[0]
    assert f"{arguments['bundle']} from {arguments['sourceBroker']} to {arguments['destinationBroker']}" in heading
    assert "{" not in heading


def test_cluster_drawn_over_time_with_moves(lake):
    text = page(lake).get("/bundles?last=365d").text
    pictures = [ET.fromstring(one) for one in re.findall(r'<svg class="brokers".*?</svg>', text, re.DOTALL)]
    assert len(pictures) == 2
    arrows, blocks = (
        [one for one in picture.iter() if one.get("class", "").split()[:1] == [kind]]
        for picture, kind in zip(pictures, ("move", "block"), strict=True)
    )
    moves = int(re.search(r"<h2>(\d+) moves", text).group(1))
    assert len(arrows) == moves > 0
    counts = [int(one) for one in re.findall(r'<td class="number">(\d+)</td></tr>', text)]
    assert len(blocks) == sum(counts[: len(BROKERS)])
    assert "<style" not in text


def test_moves_are_listed_newest_first(lake):
    decided = [
        json.loads(arguments)
        for arguments in DeltaTable(f"{lake}/decisions")
        .to_pyarrow_table(columns=["arguments"])["arguments"]
        .to_pylist()
    ]
    moves = table_of(page(lake).get("/bundles?last=365d").text, "bundle", "from", "to")
    ways = {(move["bundle"], move["from"], move["to"]) for move in moves}
    assert ways <= {(one["bundle"], one["sourceBroker"], one["destinationBroker"]) for one in decided}
    times = [move["at (UTC)"] for move in moves]
    assert times == sorted(times, reverse=True)
    assert times[0] > times[-1]


def test_missing_or_unknown_cluster_reported(lake, tmp_path):
    assert "No cluster with bundles is on record" in page(str(tmp_path)).get("/bundles").text
    answer = page(lake).get("/bundles?cluster=%3Cscript%3E")
    assert (answer.status_code, "<script>" in answer.text) == (200, False)


def test_switch_timeline_explains_failed_ledgers(tmp_path):
    assert "No switch is on record" in page(str(tmp_path / "none")).get("/switches").text
    for folder, first_attempt_only in (("failed", True), ("done", False)):
        SwitchStory(str(tmp_path / folder)).run(first_attempt_only)
    text = page(str(tmp_path / "failed")).get("/switches").text
    assert re.findall(r'<span class="tag (\w+)">([A-Z_]+)</span>', text) == [("bad", "BUILD"), ("good", "PROMOTE")]
    assert f'<td class="number">{TAKEN}</td><td class="code">/schemas/acme/shop/carts</td>' in text
    assert "delete them there and try again" in text
    assert "anabranch bookies switch --target new --no-dry-run" in text
    done = page(str(tmp_path / "done")).get("/switches").text
    assert "10 ledgers copied (0.0 MB), 6 records promoted, 1 of them rolled over, 9 old copies deleted" in done
    assert "Ledgers that failed" not in done


def test_report_sandboxed_within_its_folder(tmp_path):
    (tmp_path / "secret.html").write_text("secret")
    folder = tmp_path / "reports"
    folder.mkdir()
    (folder / "a b.html").write_text("<script>1</script>")
    (folder / "notes.txt").write_text("no report")
    (folder / "link.html").symlink_to(tmp_path / "secret.html")
    found = page(str(tmp_path / "lake"), reports=folder)
    assert re.findall(r"/reports/read\?name=([^\"]+)", found.get("/reports").text) == ["a+b.html"]
    answer = found.get("/reports/read?name=a+b.html")
    assert answer.text == "<script>1</script>"
    assert answer.headers["content-security-policy"].startswith("sandbox allow-scripts")
    assert "allow-same-origin" not in answer.headers["content-security-policy"]
    for name in ("../secret.html", "link.html", "notes.txt", "none.html", str(tmp_path / "secret.html")):
        assert found.get(f"/reports/read?name={name}").status_code == 404


def test_a_token_of_one_tenant_sees_neither(lake, tmp_path):
    token = add_token(tmp_path / "t", "ann", "operate", ["acme"])
    found = page(lake, Access(tmp_path / "t"))
    found.post("/sign-in", {"token": token})
    for path in ("/bundles", "/switches", "/reports", "/reports/read?name=x"):
        assert found.get(path).status_code == 403
