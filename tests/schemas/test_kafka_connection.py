"""One `[kafka]` for every client: what fits together, what both kinds of client are given, and where no secret goes."""

from __future__ import annotations

from pathlib import Path

import pytest

from schemas.kafka.connection import KafkaConnection
from schemas.settings.root import SettingsError, load_settings
from tests import tls

HOME = Path(__file__).parents[2]
PASSWORD = {"ANABRANCH_KAFKA_PASSWORD": "s3cret"}
SCRAM = '[kafka]\nsecurity_protocol = "SASL_SSL"\nusername = "job"\n'
OLD_FORM = (tls.FOLDER / "client-old-form.key").read_text()
"""The key `client` in the form that OpenSSL made before PKCS#8."""


def load(folder: Path, text: str, environment: dict[str, str] | None = None):
    file = folder / "over.toml"
    file.write_text(text)
    return load_settings([file], HOME, environment or {})


def connection(folder: Path, text: str, environment: dict[str, str] | None = None) -> KafkaConnection:
    return load(folder, text, environment).kafka_connection()


def test_nothing_secured_by_default(tmp_path):
    plain = connection(tmp_path, "")
    assert plain.librdkafka() == plain.jvm() == {"bootstrap.servers": "127.0.0.1:9092"}
    assert not plain.is_encrypted


def test_kafka_clients_get_password_their_own_way(tmp_path):
    """librdkafka gets the value, the JVM the place where it finds it."""
    found = connection(tmp_path, SCRAM, PASSWORD)
    ours = found.librdkafka({"client.id": "one"})
    assert (ours["client.id"], ours["security.protocol"], ours["sasl.mechanism"]) == (
        "one",
        "SASL_SSL",
        "SCRAM-SHA-512",
    )
    assert (ours["sasl.username"], ours["sasl.password"]) == ("job", "s3cret")
    line = found.spark()["kafka.sasl.jaas.config"]
    assert line == (
        "org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="job" password="${env:ANABRANCH_KAFKA_PASSWORD}";'
    )


def test_no_secret_is_in_what_spark_or_a_log_is_given(tmp_path):
    (tmp_path / "password").write_text("s3cret")
    files = f'certificate = "{tls.certificate("client")}"\nkey = "{tls.key("client")}"\n'
    the_key = tls.key("client").read_text().splitlines()[1]
    for text in (SCRAM + files, SCRAM + files + f'password_file = "{tmp_path}/password"\n'):
        settings = load(tmp_path, text, PASSWORD)
        found = settings.kafka_connection()
        for shown in (str(found.spark()), repr(found), repr(settings), settings.model_dump_json()):
            assert not [secret for secret in ("s3cret", the_key) if secret in shown]


def test_password_file_read_by_both_clients(tmp_path):
    (tmp_path / "password").write_text("fr0m-file")
    found = connection(tmp_path, SCRAM + f'password_file = "{tmp_path}/password"\n')
    assert found.librdkafka()["sasl.password"] == "fr0m-file"
    assert f'password="${{directory:{tmp_path}:password}}"' in found.jvm()["sasl.jaas.config"]


def test_certificates_are_files_for_both_clients(tmp_path):
    ca, certificate, key = tls.CA, tls.certificate("client"), tls.key("client")
    found = connection(
        tmp_path, f'[kafka]\nsecurity_protocol = "SSL"\nca = "{ca}"\ncertificate = "{certificate}"\nkey = "{key}"\n'
    )
    assert found.is_encrypted
    ours = found.librdkafka()
    assert [ours[f"ssl.{what}.location"] for what in ("ca", "certificate", "key")] == [
        str(ca),
        str(certificate),
        str(key),
    ]
    assert found.jvm()["ssl.truststore.location"] == str(ca)
    assert found.jvm()["ssl.keystore.key"] == f"${{directory:{key.parent}:client.key}}"


@pytest.mark.parametrize(
    ("text", "environment", "said"),
    [
        (SCRAM, {}, "password of job is missing: set ANABRANCH_KAFKA_PASSWORD"),
        ('[kafka]\nsecurity_protocol = "SASL_SSL"\n', PASSWORD, "needs a username"),
        ('[kafka]\nusername = "job"\n', PASSWORD, "need security_protocol SASL"),
        ('[kafka]\nca = "ca.pem"\n', {}, "need security_protocol SSL or SASL_SSL"),
        ('[kafka]\nsecurity_protocol = "SSL"\nkey = "key.pem"\n', {}, "belong together"),
        ('[kafka]\nsecurity_protocol = "TLS"\n', {}, "kafka.security_protocol"),
        ('[kafka]\nsasl_mechanism = "OAUTHBEARER"\n', {}, "kafka.sasl_mechanism"),
        (SCRAM + 'password = "in a file"\n', {}, "is a secret: set ANABRANCH_KAFKA_PASSWORD"),
        ('[controller]\ntoken = "in a file"\n', {}, "is a secret: set ANABRANCH_CONTROLLER_TOKEN"),
        (SCRAM, {"ANABRANCH_KAFKA_PASSWORD": 'a"b'}, "quotation mark"),
        (SCRAM.replace("job", "a\\\\b"), PASSWORD, "backslash"),
    ],
)
def test_what_does_not_fit_together_is_named(tmp_path, text, environment, said):
    with pytest.raises(SettingsError, match=said) as refused:
        load(tmp_path, text, environment)
    assert 'a"b' not in str(refused.value)


def test_unusable_file_named_at_start(tmp_path):
    with pytest.raises(SettingsError, match=r"\[kafka\] TLS: cannot use .*nowhere.pem: No such file"):
        connection(tmp_path, '[kafka]\nsecurity_protocol = "SSL"\nca = "nowhere.pem"\n')
    (tmp_path / "ca.pem").write_text("no certificate")
    with pytest.raises(SettingsError, match=r"cannot use .*ca.pem"):
        connection(tmp_path, f'[kafka]\nsecurity_protocol = "SSL"\nca = "{tmp_path}/ca.pem"\n')
    (tmp_path / "password").write_text("with a line break\n")
    with pytest.raises(SettingsError, match="and nothing else"):
        connection(tmp_path, SCRAM + f'password_file = "{tmp_path}/password"\n')
    key = tmp_path / "old.key"
    both = f'certificate = "{tls.certificate("client")}"\nkey = "{key}"\n'
    for text, said in ((OLD_FORM, "no PKCS#8 key"), (tls.key("client-locked").read_text(), "has a password")):
        key.write_text(text)
        with pytest.raises(SettingsError, match=said):
            connection(tmp_path, f'[kafka]\nsecurity_protocol = "SSL"\n{both}')


def test_only_connection_module_names_brokers():
    """No client can be forgotten; that benchmark configures the public clients, as their users do."""
    packages = ("schemas", "decisions", "engine", "lake", "runtime", "streaming", "anabranch", "benchmarks")
    named = [
        str(file.relative_to(HOME))
        for package in packages
        for file in (HOME / package).rglob("*.py")
        if "bootstrap.servers" in file.read_text()
    ]
    assert sorted(named) == ["benchmarks/clients.py", "schemas/kafka/connection.py"]
