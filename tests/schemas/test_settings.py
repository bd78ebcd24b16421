"""Settings: later files win, the environment gives endpoints, and a wrong key is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from schemas.ids import decision_id, digest, topic_parts
from schemas.settings import root
from schemas.settings.environment import environment_keys, type_parts
from schemas.settings.former import FORMER
from schemas.settings.root import Settings, SettingsError, default_home, load_settings
from schemas.settings.section import Section

HOME = Path(__file__).parents[2]


def load(tmp_path, text, environment=None):
    file = tmp_path / "over.toml"
    file.write_text(text)
    return load_settings([file], HOME, environment or {})


def test_the_shipped_settings_are_valid():
    assert load_settings([], HOME, {}).stream.change_threshold == 0.25
    assert load_settings([], HOME, {}).collect.consumers == "attached", "asking for stats may harm a cluster"
    assert load_settings(["conf/demonstration.toml"], HOME, {}).stream.tick_seconds < 60


def test_a_later_file_wins_key_by_key(tmp_path):
    settings = load(tmp_path, "[stream]\nbuckets = 3\n")
    assert settings.stream.buckets == 3
    assert settings.stream.tick_seconds == 60


def test_environment_sets_endpoints_and_hides_token(tmp_path):
    environment = {"ANABRANCH_KAFKA_BOOTSTRAP": "k:1", "ANABRANCH_CONTROLLER_TOKEN": "s3cret"}
    settings = load(tmp_path, "", environment)
    assert settings.kafka.bootstrap == "k:1"
    assert settings.controller.token.get_secret_value() == "s3cret"
    assert "s3cret" not in repr(settings)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("not toml", "no TOML"),
        ("[stream]\nbuckets = true\n", r"stream\.buckets: must be a whole number \(Number of parts"),
        ("[stream]\ntick_seconds = true\n", r"stream\.tick_seconds: must be a number \(Seconds between"),
        ("[controller]\nsealed_retention_seconds = nan\n", r"sealed_retention_seconds: must be a number \(Seconds to"),
        ("[controller]\nsealed_retention_seconds = -inf\n", r"sealed_retention_seconds: must be a number \(Seconds to"),
        ("[controller]\ncheckpoint_retention_seconds = inf\n", "checkpoint_retention_seconds: must be a number"),
        ("[stream]\npolicy = 'x'\n", r"\[stream\] policy is \[policy\] cluster"),
        ("[stream]\nbuckets = 'many'\n", r"over\.toml: stream\.buckets: must be a whole number \(Number of parts"),
        ("[web]\nport = 99999\n", r"web\.port: must be at most 65535 \(Port of the page"),
        ("[executor]\nmode = 'maybe'\n", "executor.mode: must be 'act', 'approve' or 'observe'"),
        ("[controller]\nnodes = ['ftp://x']\n", r"controller\.nodes\.0: has the wrong form \(URLs of all controllers"),
        ("[brakes]\nfailures = 3\n", r"brakes: unknown key \(did you mean executor\.brakes\?\)"),
        ("[nonsense]\na = 1\n", "nonsense: unknown key .anabranch config schema"),
        ("[executor.brakes]\nwindows = [{day = 1}]\n", r"windows\.0\.day: unknown key \(anabranch config schema"),
        ("stream = 3\n", r"stream is a section: write its keys below \[stream\]"),
        ("buckets = 3\n", r"buckets is outside of all sections \(did you mean stream\.buckets\?\)"),
        ("home = '/'\n", "home is no setting"),
        ("[executor]\nlease_seconds = 5\n", r"over\.toml: executor: lease_seconds \(5\) is less than"),
    ],
)
def test_a_wrong_setting_is_named(tmp_path, text, named):
    with pytest.raises(SettingsError, match=named):
        load(tmp_path, text)


@pytest.mark.parametrize(
    ("variable", "value", "path", "expected"),
    [
        ("ANABRANCH_LAKE__PATH", "s3://lake/prod", ("lake", "path"), "s3://lake/prod"),
        ("ANABRANCH_STREAM__BUCKETS", "7", ("stream", "buckets"), 7),
        ("ANABRANCH_BUNDLES__ENABLED", "true", ("bundles", "enabled"), True),
        ("ANABRANCH_EXECUTOR__BRAKES__ACTIONS_PER_MINUTE", "9", ("executor", "brakes", "actions_per_minute"), 9),
        ("ANABRANCH_METRICS__NAMES", '["a", "b"]', ("metrics", "names"), ("a", "b")),
        ("ANABRANCH_EXECUTOR__MODE", "observe", ("executor", "mode"), "observe"),
        ("ANABRANCH_STREAM__BUCKETS", "", ("stream", "buckets"), 3),
        ("ANABRANCH_CONTROLLER__LIMITS__SESSIONS", "2.0e+03", ("controller", "limits", "sessions"), 2_000),
        ("ANABRANCH_WEB_PORT", "tcp://10.0.0.7:8090", ("web", "port"), 8090),
        ("ANABRANCH_WEB_SERVICE_PORT", "80", ("web", "port"), 8090),
        ("ANABRANCH_WEB_PORT_8090_TCP_PORT", "80", ("web", "port"), 8090),
        ("ANABRANCH_WEBS_PORT", "tcp://10.0.0.7:8090", ("web", "port"), 8090),
    ],
)
def test_the_environment_wins_over_files(tmp_path, variable, value, path, expected):
    found = load(tmp_path, "[stream]\nbuckets = 3\n", {variable: value})
    for name in path:
        found = getattr(found, name)
    assert found == expected


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("ANABRANCH_STREAM__BUKETS", "7", "ANABRANCH_STREAM__BUKETS .* did you mean ANABRANCH_STREAM__BUCKETS"),
        ("ANABRANCH_NONSENSE__NOTHING_LIKE_IT", "7", "anabranch config schema"),
        ("ANABRANCH_LAKE_PATH", "/lake", "ANABRANCH_LAKE_PATH has no effect: did you mean ANABRANCH_LAKE__PATH"),
        ("ANABRANCH_KAFKA_BOOTSTRAPS", "k:1", "BOOTSTRAPS has no effect: did you mean ANABRANCH_KAFKA_BOOTSTRAP"),
        ("ANABRANCH_STREAM_TICK_SECOND", "9", "has no effect: did you mean ANABRANCH_STREAM__TICK_SECONDS"),
        ("ANABRANCH_STREAM__PROFILE", "default", "ANABRANCH_STREAM__PROFILE is ANABRANCH_POLICY__PROFILE now"),
        (
            "ANABRANCH_CONTROLLER_METADATA",
            "zoo",
            "in ANABRANCH_CONTROLLER_METADATA: controller.metadata: has the wrong",
        ),
        ("ANABRANCH_STREAM__BUCKETS", "many", "ANABRANCH_STREAM__BUCKETS .* no TOML value"),
        ("ANABRANCH_STREAM__BUCKETS", "7\nx = 1", "no TOML value"),
        ("ANABRANCH_STREAM__BUCKETS", "0", "ANABRANCH_STREAM__BUCKETS: stream.buckets"),
        ("ANABRANCH_KAFKA__PASSWORD", "s3cret", "names no setting: did you mean ANABRANCH_KAFKA_PASSWORD"),
    ],
)
def test_a_wrong_variable_is_named(tmp_path, variable, value, message):
    with pytest.raises(SettingsError, match=message) as caught:
        load(tmp_path, "", {variable: value})
    assert "s3cret" not in str(caught.value)


def test_the_nearest_key_is_named(tmp_path):
    with pytest.raises(SettingsError, match=r"stream.bukets: .*did you mean stream.buckets\?"):
        load(tmp_path, "[stream]\nbukets = 3\n")


def test_wrong_keys_listed_by_file(tmp_path):
    for name, text in (("one", "[stream]\nbuckets = 0\n"), ("two", "[web]\nport = -1\n[log]\nformat = 'xml'\n")):
        (tmp_path / name).write_text(text)
    (tmp_path / "three").write_text("[log]\nformat = 'json'\n")
    with pytest.raises(SettingsError) as caught:
        load_settings(
            [tmp_path / name for name in ("one", "two", "three")], HOME, {"ANABRANCH_STREAM__TICK_SECONDS": "0"}
        )
    problems = str(caught.value).removeprefix("wrong settings in ").split("; in ")
    assert [problem[: problem.index(": must")] for problem in problems] == [
        f"{tmp_path}/one: stream.buckets",
        "ANABRANCH_STREAM__TICK_SECONDS: stream.tick_seconds",
        f"{tmp_path}/two: web.port",
    ]


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(SettingsError, match=r"absent\.toml"):
        load_settings([tmp_path / "absent.toml"], HOME, {})


def test_home_without_conf_uses_packaged_one(tmp_path):
    settings = load_settings(["conf/demonstration.toml"], tmp_path, {})
    assert settings.stream.tick_seconds < 60
    assert settings.path(settings.policy.cluster) == HOME / "conf" / "policies" / "demonstration.toml"
    assert settings.lake_path == str(tmp_path / "var" / "lake")
    assert settings.path("conf/absent.toml") == tmp_path / "conf" / "absent.toml"


def test_conf_of_home_overrides_packaged_one(tmp_path):
    (tmp_path / "conf" / "policies").mkdir(parents=True)
    (tmp_path / "conf" / "anabranch.toml").write_text("[stream]\nbuckets = 3\n")
    (tmp_path / "conf" / "policies" / "default.toml").write_text("maxSegments = 7\n")
    settings = load_settings([], tmp_path, {})
    assert (settings.stream.buckets, settings.stream.tick_seconds) == (3, 60)
    assert settings.path(settings.policy.cluster) == tmp_path / "conf" / "policies" / "default.toml"
    assert settings.path(settings.stream.spark_conf) == HOME / "conf" / "spark.conf"


def test_home_is_nearest_folder_with_settings(tmp_path, monkeypatch):
    """Else it is the project's folder or the working folder."""
    monkeypatch.delenv("ANABRANCH_HOME", raising=False)
    monkeypatch.chdir(tmp_path)
    assert default_home() == HOME
    monkeypatch.setattr(root, "PROJECT", tmp_path / "site-packages")
    assert default_home() == tmp_path
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "anabranch.toml").touch()
    (tmp_path / "inner").mkdir()
    monkeypatch.chdir(tmp_path / "inner")
    assert default_home() == tmp_path


def test_decision_id_stable_in_replay_new_per_attempt():
    one = decision_id("topic://a/b/c", 3, "split", [7], 1)
    assert one == decision_id("topic://a/b/c", 3, "split", [7], 1)
    assert (
        len({one, decision_id("topic://a/b/c", 3, "split", [7], 2), decision_id("topic://a/b/c", 4, "split", [7], 1)})
        == 3
    )


def test_digest_independent_of_key_order():
    assert digest({"a": 1, "b": [2]}) == digest({"b": [2], "a": 1})


@pytest.mark.parametrize("name", ["topic://a/b", "persistent://a/b/c", "topic:///b/c", "", "topic://a//c"])
def test_another_form_of_name_is_refused(name):
    with pytest.raises(ValueError, match="topic://tenant/namespace/name"):
        topic_parts(name)


def test_a_topic_name_may_hold_slashes():
    assert topic_parts("topic://a/b/c/d") == ("a", "b", "c/d")


@pytest.mark.parametrize(
    ("metadata", "address"),
    [
        ("sqlite", ("", "", False)),
        ("zk://a:2181", ("a:2181", "/anabranch", False)),
        ("zk://a:2181,b:2181/x/y/", ("a:2181,b:2181", "/x/y", False)),
        ("zks://a:2281,b:2281/x", ("a:2281,b:2281", "/x", True)),
    ],
)
def test_the_metadata_store_is_named_by_one_address(tmp_path, metadata, address):
    environment = {"ANABRANCH_CONTROLLER_METADATA": metadata, "ANABRANCH_CONTROLLER_METADATA_AUTH": "me:s3cret"}
    settings = load(tmp_path, "", environment)
    assert settings.controller.zookeeper == address
    assert "s3cret" not in repr(settings)


@pytest.mark.parametrize(
    ("metadata", "grace", "refused"), [("zk://a:2181", 9.9, True), ("zk://a:2181", 10, False), ("sqlite", 0.1, False)]
)
def test_grace_period_below_session_refused(tmp_path, metadata, grace, refused):
    file = tmp_path / "own.toml"
    file.write_text(f'[controller]\nmetadata = "{metadata}"\nsession_seconds = 10\nconsumer_grace_seconds = {grace}\n')
    if not refused:
        assert load_settings([file], environment={}).controller.consumer_grace_seconds == grace
        return
    with pytest.raises(
        SettingsError, match=r"consumer_grace_seconds \(9.9\) is less than session_seconds \(10\).*raise"
    ):
        load_settings([file], environment={})


@pytest.mark.parametrize("metadata", ["zookeeper", "zk://", "zk:///x", "zk://a b", "zk://a/../b c", "sqlite:x"])
def test_another_metadata_store_is_refused(tmp_path, metadata):
    with pytest.raises(SettingsError, match=r"controller\.metadata"):
        load(tmp_path, "", {"ANABRANCH_CONTROLLER_METADATA": metadata})


@pytest.mark.parametrize(("key", "now"), [("profile", r"\[policy\] profile"), ("policy", r"\[policy\] cluster")])
def test_older_key_names_its_successor(tmp_path, key, now):
    with pytest.raises(SettingsError, match=rf"\[stream\] {key} is {now} now"):
        load(tmp_path, f'[stream]\n{key} = "default"\n')


def test_missing_cluster_policy_named_with_key(tmp_path):
    settings = load(tmp_path, '[policy]\ncluster = "nowhere.toml"\n')
    with pytest.raises(SettingsError, match=r"nowhere\.toml, \[policy\] cluster"):
        settings.cluster_policy_text()


def test_the_example_of_the_page_on_brakes_is_valid(tmp_path):
    page = (HOME / "docs" / "operations.md").read_text()
    example = page.partition("## Brakes")[2].partition("```toml\n")[2].partition("```")[0]
    settings = load(tmp_path, example).executor
    assert (settings.mode, settings.brakes.actions_per_minute, len(settings.brakes.windows)) == ("approve", 30, 2)


def test_former_keys_are_named_and_stop_nothing(tmp_path):
    text = "[executor]\nretry_delay_seconds = 9\nworkers = 3\n[web.limits]\nhead_bytes = 9\n[traffic]\nfanout = 1\n"
    settings = load(tmp_path, text, {"ANABRANCH_COLLECT__TOPICS_SECONDS": "2"})
    assert settings.executor.workers == 3
    assert settings.former_warning == (
        "no longer read, remove from the settings: ANABRANCH_COLLECT__TOPICS_SECONDS, "
        + ", ".join(
            f"{key} in {tmp_path}/over.toml" for key in ("executor.retry_delay_seconds", "traffic.fanout", "web.limits")
        )
    )


def test_settings_without_former_keys_warn_of_nothing(tmp_path):
    assert load(tmp_path, "[executor]\nworkers = 3\n").former_warning is None


def test_former_keys_are_no_keys_of_today():
    today = {".".join(path) for path, _ in environment_keys(Settings)}
    assert not today & FORMER


def described_keys(model, path=()):
    """Yield section, name and description of every key, also of the elements of lists and tables."""
    for name, field in model.model_fields.items():
        inner = [part for part in type_parts(field.annotation) if isinstance(part, type) and issubclass(part, Section)]
        if field.annotation not in inner and (path or not inner) and name not in ("home", "former_keys"):
            yield path, name, field.description
        for part in inner:
            yield from described_keys(part, (*path, name))


def test_every_key_has_one_line_of_description():
    for path, name, description in described_keys(Settings):
        assert description, (*path, name)
        assert "\n" not in description, (*path, name)


def test_delivered_file_repeats_the_descriptions():
    described = {(*path, name): description for path, name, description in described_keys(Settings)}
    section, before, keys = (), "", 0
    for line in (HOME / "conf" / "anabranch.toml").read_text().splitlines():
        if line.startswith("["):
            section = tuple(line.strip("[]").split("."))
        elif line and not line.startswith("#"):
            keys += 1
            key = (*section, line.partition(" = ")[0])
            assert before == f"# {described[key]}"
        before = line
    assert keys > 100


@pytest.mark.parametrize(("profile", "is_shared"), [("one-machine", False), ("cluster", True)])
def test_profiles_of_settings_load(tmp_path, profile, is_shared):
    secrets = {"ANABRANCH_CONTROLLER_METADATA_AUTH": "anabranch:s3cret"} if is_shared else {}
    settings = load_settings([root.PROJECT / "conf" / f"{profile}.toml"], tmp_path, secrets)
    assert settings.executor.mode == "observe"
    assert settings.executor.brakes.actions_per_minute > 0
    assert settings.controller.zookeeper.is_encrypted is is_shared
    assert (settings.executor.shards > 1) is is_shared
