"""Messages for each kind of destination, and the POST that sends them.

Stage: under `anabranch.alerts.notifiers`. Alertmanager's API v2, Slack's incoming webhooks, and a generic webhook with
the body of Alertmanager's own (version 4), signed as Standard Webhooks 1.0 says. No redirect is followed.
"""

import base64
import binascii
import hashlib
import hmac
import json
import logging
import os
import re
import ssl
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from email.utils import parsedate_to_datetime
from types import MappingProxyType
from typing import Any, Protocol

import httpcore
import httpx

from anabranch.admin.connections import Connections, deadline_in
from anabranch.alerts.addresses import address_resolver
from anabranch.alerts.record import Notice
from anabranch.alerts.rules import Alertmanager, Destination, Log, Rules, RulesError, Slack, Target, Webhook
from schemas.printable import printable
from schemas.settings.exposure import is_encrypted_or_here

log = logging.getLogger(__name__)

MAX_ANSWER_BYTES = 2_000
"""Longest part of an answer that is read, for the message."""
RESEND_SECONDS = 60.0
"""Interval at which Alertmanager gets an alert that goes on firing, or was resolved lately."""
EXPIRE_SECONDS = 4 * RESEND_SECONDS
"""Without another word, Alertmanager takes a firing alert as resolved after so long."""
_NEVER = "0001-01-01T00:00:00Z"
_USER_AGENT = "anabranch-alerts"


REJECTED = frozenset({400, 404, 410, 413, 414, 415, 422, 431})
"""Status codes that say of one request that it will never be accepted. Others may pass: with a token that is mended
(401, 403), or by themselves (408, 429, 5xx)."""


class DeliveryFailed(Exception):
    """Delivery failed and is tried again; the message says why."""

    def __init__(self, message: str, retry_after_seconds: float = 0.0) -> None:
        """`retry_after_seconds`: the delay that the destination asks for."""
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class NoticeRejected(DeliveryFailed):
    """A destination will never accept these notices, or one of them."""


class NoticeSender(Protocol):
    """One destination."""

    batch: int
    """Most notices in one message."""
    resend_seconds: float | None
    """Interval at which firing and recently resolved alerts are sent again; None: once is enough."""

    def send(self, notices: Sequence[Notice], now: datetime) -> None:
        """Send notices. Raises `DeliveryFailed`, or `NoticeRejected` when a retry would be useless."""


def sender_of(
    name: str,
    chosen: Destination,
    rules: Rules,
    environment: Mapping[str, str] = os.environ,
    tls: ssl.SSLContext | None = None,
) -> NoticeSender:
    """Return the sender of a destination.

    `tls`: the trust for its certificate; None: the system's authorities. Raises `RulesError` when its address or a
    secret is missing or wrong.
    """
    if isinstance(chosen, Log):
        return LogSender(rules)
    post = _Post(name, chosen, environment, tls or ssl.create_default_context())
    if isinstance(chosen, Alertmanager):
        token = _read_secret(name, "token_variable", chosen.token_variable, environment)
        return AlertmanagerSender(post, rules, token)
    if isinstance(chosen, Slack):
        return SlackSender(post, rules)
    return WebhookSender(post, rules, name, _signing_key(name, chosen, environment))


@dataclass
class LogSender:
    """Sender that writes to this process' own log."""

    rules: Rules
    batch: int = 1
    resend_seconds: float | None = None

    def send(self, notices: Sequence[Notice], now: datetime) -> None:
        for notice in notices:
            labels = _labels(notice, self.rules)
            level = logging.INFO if notice.alert.status == "resolved" else logging.WARNING
            log.log(
                level,
                "%s %s (%s): %s",
                notice.alert.status,
                labels.pop("alertname"),
                labels.pop("severity"),
                printable(notice.alert.summary),
                extra={"labels": labels},
            )


@dataclass
class AlertmanagerSender:
    """Sender for Alertmanager.

    As Prometheus does, it repeats an alert while it fires and for a while after it is resolved, so that an Alertmanager
    that lost its state learns it again.
    """

    post: "_Post"
    rules: Rules
    token: str | None
    batch: int = 100
    resend_seconds: float | None = RESEND_SECONDS

    def send(self, notices: Sequence[Notice], now: datetime) -> None:
        headers = {} if self.token is None else {"Authorization": f"Bearer {self.token}"}
        alerts = [
            {
                **_alert(notice, self.rules),
                "endsAt": _instant(
                    notice.alert.at if notice.alert.status == "resolved" else now + timedelta(seconds=EXPIRE_SECONDS)
                ),
            }
            for notice in notices
        ]
        self.post(json.dumps(alerts).encode(), headers, "/api/v2/alerts")


@dataclass
class WebhookSender:
    """Sender for any receiver of JSON. `webhook-id` stays the same when a notice is repeated."""

    post: "_Post"
    rules: Rules
    name: str
    key: bytes | None
    batch: int = 1
    resend_seconds: float | None = None

    def send(self, notices: Sequence[Notice], now: datetime) -> None:
        for notice in notices:
            alert = _alert(notice, self.rules)
            body = json.dumps(
                {
                    "version": "4",
                    "receiver": self.name,
                    "status": notice.alert.status,
                    "groupKey": f"{notice.alert.rule}:{notice.alert.alert_id}",
                    "truncatedAlerts": 0,
                    "groupLabels": {"alertname": notice.alert.rule},
                    "commonLabels": alert["labels"],
                    "commonAnnotations": alert["annotations"],
                    "externalURL": "",
                    "alerts": [
                        {
                            **alert,
                            "status": notice.alert.status,
                            "fingerprint": notice.alert.alert_id,
                            "endsAt": _instant(notice.alert.at) if notice.alert.status == "resolved" else _NEVER,
                        }
                    ],
                }
            ).encode()
            self.post(body, self._headers(notice.notice_id, body))

    def _headers(self, notice_id: str, body: bytes) -> dict[str, str]:
        sent_at = str(int(time.time()))
        headers = {"webhook-id": notice_id, "webhook-timestamp": sent_at}
        if self.key is not None:
            signed = hmac.new(self.key, b".".join([notice_id.encode(), sent_at.encode(), body]), hashlib.sha256)
            headers["webhook-signature"] = "v1," + base64.b64encode(signed.digest()).decode()
        return headers


@dataclass
class SlackSender:
    """Sender for an incoming webhook of Slack, or a compatible one."""

    post: "_Post"
    rules: Rules
    batch: int = 1
    resend_seconds: float | None = None

    def send(self, notices: Sequence[Notice], now: datetime) -> None:
        for notice in notices:
            rule = self.rules.rule(notice.alert.rule)
            text = f"*{notice.alert.status.upper()} {notice.alert.rule}* {_slack(notice.alert.summary)}"
            if rule is not None and rule.runbook is not None:
                is_link = rule.runbook.startswith(("http://", "https://"))
                text += f" <{_slack(rule.runbook)}|runbook>" if is_link else f" (runbook: {_slack(rule.runbook)})"
            self.post(json.dumps({"text": text}).encode())


class _Post:
    """POST of JSON to the address of one destination."""

    def __init__(self, name: str, target: Target, environment: Mapping[str, str], tls: ssl.SSLContext) -> None:
        self._name = name
        self._url = target.url or _read_secret(name, "url_variable", target.url_variable, environment) or ""
        if not self._url.startswith(("http://", "https://")):
            raise RulesError(f"destinations.{name}: the variable {target.url_variable} holds no address like https://…")
        if not is_encrypted_or_here(self._url):
            log.warning(
                "%s is told without TLS, so that alerts, and its token or secret address, can be read and changed on "
                "the way: give destinations.%s an https address",
                name,
                name,
            )
        self._seconds = target.timeout_seconds
        self._client = httpx.Client(
            transport=Connections(tls, address_resolver(target.allow_local)), follow_redirects=False
        )

    def __call__(self, body: bytes, headers: Mapping[str, str] = MappingProxyType({}), path: str = "") -> None:
        url = self._url.rstrip("/") + path if path else self._url
        sent = {"Content-Type": "application/json", "User-Agent": _USER_AGENT, **headers}
        try:
            with deadline_in(self._seconds), self._client.stream("POST", url, content=body, headers=sent) as answer:
                received = b""
                for part in answer.iter_raw():
                    received += part
                    if len(received) > MAX_ANSWER_BYTES:
                        break
                status, retry_after = answer.status_code, answer.headers.get("Retry-After", "")
        except (
            httpx.HTTPError,
            httpx.InvalidURL,
            httpcore.NetworkError,
            httpcore.ProtocolError,
            httpcore.TimeoutException,
            httpcore.UnsupportedProtocol,
            OSError,
        ) as error:
            # Never the address: with Slack it is the secret.
            raise DeliveryFailed(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__) from None
        if 300 <= status < 400:
            raise DeliveryFailed(
                f"it answers {status}, a redirect, which is not followed: configure the address that it means"
            )
        if not 200 <= status < 300:
            message = f"it answers {status}: {printable(received[:200].decode(errors='replace'))}"
            if status in REJECTED:
                raise NoticeRejected(message)
            raise DeliveryFailed(message, seconds_of(retry_after, datetime.now(timezone.utc)))


def seconds_of(retry_after: str, now: datetime) -> float:
    """Return the delay of a `Retry-After` header, in seconds or as an HTTP date; 0 if missing or invalid."""
    if re.fullmatch(r"[0-9]{1,9}", retry_after.strip()):
        return float(retry_after)
    try:
        retry_at = parsedate_to_datetime(retry_after)
    except (ValueError, OverflowError):
        return 0.0
    return max(0.0, (retry_at.replace(tzinfo=retry_at.tzinfo or timezone.utc) - now).total_seconds())


def _alert(notice: Notice, rules: Rules) -> dict[str, Any]:
    alert, rule = notice.alert, rules.rule(notice.alert.rule)
    annotations = {"summary": alert.summary}
    if rule is not None and rule.runbook is not None:
        annotations["runbook_url"] = rule.runbook
    if alert.value is not None:
        annotations["value"] = f"{alert.value:.6g}"
    return {"labels": _labels(notice, rules), "annotations": annotations, "startsAt": _instant(alert.since)}


def _labels(notice: Notice, rules: Rules) -> dict[str, str]:
    rule = rules.rule(notice.alert.rule)
    of_rule = {} if rule is None else rule.labels
    severity = "warning" if rule is None else rule.severity
    return {**dict(notice.alert.labels), **of_rule, "alertname": notice.alert.rule, "severity": severity}


def _instant(instant: datetime) -> str:
    return instant.astimezone(timezone.utc).isoformat().replace("+00:00", "Z")


def _slack(text: str) -> str:
    return printable(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _read_secret(name: str, key: str, variable: str | None, environment: Mapping[str, str]) -> str | None:
    if variable is None:
        return None
    if not (value := environment.get(variable, "").strip()):
        raise RulesError(f"destinations.{name}.{key}: the environment variable {variable} is not set")
    return value


def _signing_key(name: str, chosen: Webhook, environment: Mapping[str, str]) -> bytes | None:
    if (secret := _read_secret(name, "secret_variable", chosen.secret_variable, environment)) is None:
        return None
    if not secret.startswith("whsec_"):
        return secret.encode()
    try:
        return base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    except binascii.Error:
        raise RulesError(f"destinations.{name}: {chosen.secret_variable} is no whsec_ with base64 behind it") from None
