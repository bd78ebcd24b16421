"""Pulsar's own Java admin client, in a JVM that is driven from here: results and refusals of its calls."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyspark
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
from py4j.protocol import Py4JJavaError

from runtime.java_home import find_java

_OPTIONS = ["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"]


class JavaRefusal(NamedTuple):
    """What the client threw: the HTTP status, its class of exception, and the reason it found in the answer."""

    status: int
    kind: str
    reason: str


class JavaAdmin:
    """One JVM with the client's jars; any number of clients in it."""

    def __init__(self, jars: Path) -> None:
        py4j = next((Path(pyspark.__file__).parent / "jars").glob("py4j-*.jar"))
        port, token, self._process = launch_gateway(
            jarpath=str(py4j),
            classpath=f"{jars}/*",
            java_path=find_java(),
            javaopts=_OPTIONS,
            die_on_exit=True,
            redirect_stdout=None,
            redirect_stderr=None,
            enable_auth=True,
            return_proc=True,
        )
        parameters = GatewayParameters(port=port, auth_token=token, auto_convert=True)
        self.gateway = JavaGateway(gateway_parameters=parameters)
        self._pulsar = self.gateway.jvm.org.apache.pulsar
        self._json = self._pulsar.common.util.ObjectMapperFactory.getMapper().writer()

    def stop(self) -> None:
        """End the JVM."""
        self.gateway.shutdown()
        self._process.stdin.close()
        self._process.wait(20)

    def client(self, url: str, token: str | None = None) -> JavaAdminClient:
        """A client of the controller at `url`."""
        builder = self._pulsar.client.admin.PulsarAdmin.builder().serviceHttpUrl(url)
        if token is not None:
            builder.authentication("org.apache.pulsar.client.impl.auth.AuthenticationToken", f"token:{token}")
        return JavaAdminClient(self, builder.build())

    def policy(self, **fields: Any) -> Any:
        """An `AutoScalePolicyOverride` of the client."""
        builder = self._pulsar.common.policies.data.AutoScalePolicyOverride.builder()
        for name, value in fields.items():
            getattr(builder, name)(value)
        return builder.build()

    def subscription_type(self, name: str) -> Any:
        """A `ScalableSubscriptionType` of the client."""
        return self._pulsar.common.policies.data.ScalableSubscriptionType.valueOf(name)

    def read(self, value: Any) -> Any:
        """A Java value as Python knows it, by way of the JSON that the client's own mapper writes."""
        return json.loads(self._json.writeValueAsString(value))


class JavaAdminClient:
    """One `PulsarAdmin`."""

    def __init__(self, jvm: JavaAdmin, admin: Any) -> None:
        self._jvm = jvm
        self._admin = admin

    def topics(self, call: str, *arguments: Any) -> Any:
        """A call of `scalableTopics()`: its result, or a `JavaRefusal`."""
        return self._call(self._admin.scalableTopics(), call, arguments)

    def namespaces(self, call: str, *arguments: Any) -> Any:
        """A call of `namespaces()`: its result, or a `JavaRefusal`."""
        return self._call(self._admin.namespaces(), call, arguments)

    def topics_at_once(self, call: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """The results of an asynchronous call for each set of arguments, all under way together."""
        topics = self._admin.scalableTopics()
        futures = [getattr(topics, call)(*each) for each in arguments]
        return [self._jvm.read(future.get()) for future in futures]

    def close(self) -> None:
        """Close its connections."""
        self._admin.close()

    def _call(self, on: Any, call: str, arguments: tuple[Any, ...]) -> Any:
        try:
            return self._jvm.read(getattr(on, call)(*arguments))
        except Py4JJavaError as error:
            thrown = error.java_exception
            return JavaRefusal(thrown.getStatusCode(), thrown.getClass().getSimpleName(), thrown.getHttpError())
