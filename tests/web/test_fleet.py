"""The fleet page: what a row says, and which rows an address shows."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from anabranch.history.live import LakeReader
from anabranch.web.fleet import UNHEARD_SECONDS
from anabranch.web.pages.choosing import FILTERS, PAGE, Choice, choose
from anabranch.web.pages.choosing import ORDERS as ORDER_NAMES
from anabranch.web.rows import TopicRow
from tests.local.lake import (
    ORDERS,
    START,
    at,
    batch,
    consumer_event,
    decision,
    hold,
    layout_event,
    layout_json,
    load,
    outcome,
    policy_event,
    write,
)
from tests.web.pages import page, table_of

WHOLE = layout_json((0, 0x0000, 0xFFFF))
HALVES = layout_json((0, 0x0000, 0xFFFF), (1, 0x0000, 0x7FFF), (2, 0x8000, 0xFFFF), epoch=1, sealed=(0,))


def test_row_shows_load_hold_action_and_consumers(tmp_path):
    lake = str(tmp_path)
    write(lake, policy_event(0), layout_event(WHOLE, 0), load(0, 20_000, 1), consumer_event("billing", 3, 1))
    write(lake, decision(2), outcome("d1", "applied", 3), layout_event(HALVES, 3, "split"), hold(4, "split-cooldown"))
    text = page(lake).get("/").text
    assert "2 segments, load not seen yet" in text
    assert 'href="/topic?name=topic%3A%2F%2Facme%2Fshop%2Forders"' in text
    [shown] = table_of(text, "segments", "consumers")
    assert (shown["segments"], shown["fullest"], shown["consumers"]) == ("2", "not seen", "3")
    assert shown["last action"].startswith("split 0 applied, ")
    assert shown["now"].startswith("The last split was too recent")


def test_a_stuck_topic_is_counted_found_and_explained(tmp_path):
    lake = str(tmp_path)
    unheard, fine = "topic://acme/shop/unheard", "topic://acme/shop/fine"
    for topic in (ORDERS, unheard, fine):
        write(lake, layout_event(WHOLE, 0, topic=topic))
    write(lake, decision(2), decision(2, 2, subject=unheard), decision(2, 3, subject=fine))
    write(lake, hold(3, "in-flight", subject=unheard), hold(3, "in-flight", subject=fine))
    write(lake, outcome("d2", "applied", 4, subject=unheard), outcome("d3", "applied", 4, subject=fine))
    write(lake, hold(5, "split-cooldown", subject=fine, seq=2))
    found = page(lake, stuck_seconds=4500)
    assert "2 stuck</span>" in found.get("/").text
    shown = found.get("/?only=stuck").text
    assert [f"shop%2F{name}" in shown for name in ("orders", "unheard", "fine")] == [True, True, False]
    for topic, said in ((ORDERS, "No executor acts on that"), (unheard, "the job has not heard of it")):
        text = found.get(f"/topic?name={topic}").text
        assert ("Stuck: " in text, said in text) == (True, True)
    assert "Stuck: " not in found.get(f"/topic?name={fine}").text
    row = found.app.state.fleet.row(unheard)
    assert [row.is_stuck(at(4 + UNHEARD_SECONDS + seconds)) for seconds in (-1, 1)] == [False, True]
    young = page(lake, stuck_seconds=1e9).get("/?only=stuck").text
    assert [f"shop%2F{name}" in young for name in ("orders", "unheard")] == [False, True]


def test_an_empty_lake_says_what_will_appear(tmp_path):
    assert "No topic is on record yet" in page(str(tmp_path)).get("/").text


def test_hostile_names_stay_text(tmp_path):
    names = [
        f"topic://acme/shop/{name}" for name in ("<script>alert(1)</script>", "a\u202eb", '"onmouseover="x', "x" * 1000)
    ]
    write(str(tmp_path), *(layout_event(WHOLE, number, topic=name) for number, name in enumerate(names)))
    text = page(str(tmp_path)).get("/").text
    assert "<script>alert" not in text
    assert "\u202e" not in text
    assert "a\\u202eb" in text
    assert '"onmouseover="' not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert page(str(tmp_path)).get("/?q=%3Cscript%3Ealert(2)").text.count("<script>") == 0


def test_unreadable_lake_reported_and_data_kept(tmp_path):
    lake = str(tmp_path)
    write(lake, layout_event(WHOLE, 0), batch(0, 1))
    found = page(lake)
    versions = list((tmp_path / "events" / "_delta_log").glob("*.json"))
    (tmp_path / "events" / "_delta_log" / f"{len(versions):020}.json").write_text("nonsense")
    found.app.state.fleet.look()
    text = found.get("/").text
    assert "orders" in text
    assert "cannot be read" in text


def test_commit_wakes_only_affected_pages(tmp_path):
    lake = str(tmp_path)
    write(lake, layout_event(WHOLE, 0))
    fleet = page(lake).app.state.fleet
    version = fleet.version

    async def scenario():
        of_fleet = asyncio.create_task(fleet.after(version))
        of_orders = asyncio.create_task(fleet.after(version, ORDERS, seconds=30))
        await asyncio.sleep(0)
        write(lake, layout_event(WHOLE, 1, topic="topic://acme/shop/other"))
        await asyncio.to_thread(fleet.look)
        assert await of_fleet > version
        assert not of_orders.done()
        write(lake, layout_event(HALVES, 2, "split"))
        await asyncio.to_thread(fleet.look)
        assert await of_orders > version

    asyncio.run(scenario())


def test_unseen_time_begins_with_the_newest_look(tmp_path):
    fleet = page(str(tmp_path)).app.state.fleet
    fleet._looked_at -= 1_000_000
    assert fleet.standing().unseen_seconds == fleet._idle_seconds
    fleet._idle_seconds = 2_000_000
    assert fleet.standing().unseen_seconds >= 1_000_000
    fleet.look()
    assert fleet.standing().unseen_seconds < 1_000_000


def test_a_page_that_waits_is_let_go_at_the_end(tmp_path):
    fleet = page(str(tmp_path)).app.state.fleet

    async def scenario():
        waiting = asyncio.create_task(fleet.after(fleet.version, seconds=60))
        await asyncio.sleep(0)
        fleet.stop()
        await waiting

    asyncio.run(scenario())
    # Without an open page the lake is looked at seldom.
    assert not fleet._wakers


def row(number, namespace="acme/shop", **changed):
    whole = {
        "name": f"topic://{namespace}/t{number:05}",
        "namespace": namespace,
        "segments": 1 + number % 7,
        "is_cold": False,
        "load": None if number % 5 == 4 else number % 30 / 10,
        "gate": ("", "settling", "merge-window")[number % 3],
        "waiting": "approval" if number % 11 == 0 else "",
        "is_open": False,
        "acted_at": at(number) if number % 2 else None,
        "consumers": number % 4,
        "turns": (),
        "version": 1,
    }
    return TopicRow(**{**whole, **changed})


TURNS = (("split", at(-90)), ("merge", at(-60)), ("split", at(-30)))
FLEET = [
    row(
        number,
        ("acme/shop", "acme/bills")[number % 2],
        turns=() if number % 13 else TURNS,
        stuck_from=None if number % 17 else at(number - 85),
    )
    for number in range(173)
]
KEPT = {
    "": lambda number: True,
    "hot": lambda number: number % 5 != 4 and number % 30 > 10,
    "waiting": lambda number: number % 11 == 0,
    "thrashing": lambda number: number % 13 == 0,
    "paused": lambda number: number % 2 == 1,
    "stuck": lambda number: number in (0, 17, 34, 51, 68, 85),
}
KEYS = {
    "load": lambda number: 1 if number % 5 == 4 else -(number % 30),
    "name": lambda number: (number % 2 == 0, number),
    "acted": lambda number: -number if number % 2 else 1,
    "segments": lambda number: -(number % 7),
    "consumers": lambda number: -(number % 4),
}


@given(
    st.sampled_from(sorted(FILTERS)),
    st.sampled_from(sorted(ORDER_NAMES)),
    st.sampled_from(["", "settling", "none"]),
    st.sampled_from(["", "acme/shop", "nobody/here"]),
    st.sampled_from(["", "T0001", "acme bills", "<"]),
)
def test_filtered_pages_complete_and_ordered(only, order, gate, namespace, words):
    choice = Choice(words, only, gate, namespace, order)
    first = choose(FLEET, choice, {"acme/bills"}, START, lambda _: True)
    got = []
    for number in range(1, first.pages + 1):
        chosen = choose(
            FLEET, Choice(words, only, gate, namespace, order, number), {"acme/bills"}, START, lambda _: True
        )
        assert len(chosen.rows) <= PAGE
        got += [one.name for one in chosen.rows]
    assert len(got) == len(set(got)) == first.found
    numbers = [int(name[-5:]) for name in got]
    kept = [number for number in range(173) if KEPT[only](number)]
    if gate:
        kept = [number for number in kept if gate == "settling" and number % 3 == 1]
    if namespace:
        kept = [number for number in kept if namespace == "acme/shop" and number % 2 == 0]
    if words:
        kept = [number for number in kept if {"T0001": number // 10 == 1, "acme bills": number % 2}.get(words)]
    assert sorted(numbers) == kept
    keys = [KEYS[order](number) for number in numbers]
    assert keys == sorted(keys)


def test_page_behind_the_last_one_is_the_last_one():
    last, behind = (choose(FLEET, Choice(page=number), set(), START, lambda _: True) for number in (4, 5))
    assert behind == last
    assert len(last.rows) == 173 % PAGE


@given(st.dictionaries(st.sampled_from(["q", "only", "gate", "namespace", "order", "page"]), st.text(max_size=30)))
def test_any_address_opens_and_links_back(query):
    """No address is an error; a link leads back to its selection."""
    choice = Choice.read(query)
    choose(FLEET, choice, set(), START, lambda _: True)
    assert choice.link().startswith("/")


def test_thrashing_is_three_recent_reversals():
    turns = (("split", at(0)), ("merge", at(60)), ("split", at(120)))
    assert row(1, turns=turns).is_thrashing(at(180))
    assert row(1, turns=turns).is_thrashing(at(3_599))
    assert not row(1, turns=turns).is_thrashing(at(3_600))
    assert not row(1, turns=turns[:2]).is_thrashing(at(180))
    assert not row(1, turns=(("split", at(0)), ("split", at(60)), ("split", at(120)))).is_thrashing(at(180))


def test_topic_is_hot_since_its_first_hot_load(tmp_path):
    lake = str(tmp_path)
    write(lake, policy_event(0), layout_event(WHOLE, 0))
    fleet, since = page(lake).app.state.fleet, []
    for seconds, rate in ((60, 20_000), (120, 25_000), (180, 100), (240, 20_000)):
        write(lake, load(0, rate, seconds))
        fleet.look()
        hot_from = fleet.row(ORDERS).hot_from
        since.append(hot_from and round((hot_from - at(0)).total_seconds()))
    assert since == [60, 60, None, 240]


def test_applied_reversals_make_a_topic_thrash(tmp_path):
    lake = str(tmp_path)
    write(lake, layout_event(WHOLE, 0))
    fleet = page(lake).app.state.fleet
    for number, action in enumerate(("split", "merge", "split"), 1):
        assert not fleet.row(ORDERS).is_thrashing(at(240))
        write(lake, decision(60 * number, number, action=action), outcome(f"d{number}", "applied", 60 * number + 1))
        fleet.look()
    assert fleet.row(ORDERS).is_thrashing(at(240))


def test_incremental_reader_equals_full_picture(tmp_path):
    lake = str(tmp_path)
    reader = LakeReader(lake)
    write(lake, policy_event(0), layout_event(WHOLE, 0), load(0, 20_000, 1), decision(2))
    assert ORDERS in reader.take()
    assert reader.take() == set()
    write(lake, outcome("d1", "applied", 3))
    assert reader.take() == {ORDERS}
    assert reader.topic(ORDERS) == LakeReader(lake).refresh(at(4)).topics[0]
    assert reader.topic(ORDERS).last.status == "applied"
