"""JVM commands for Pulsar's and BookKeeper's programs from the checked jars.

Each program is a small JVM on loopback, with its configuration and its log in a folder of its own.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from runtime.java_home import SetupError, archive_options, find_java, java_version

_FLAGS = [
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xshare:auto",
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Dpulsar.allocator.exit_on_oom=true",
    "-Dlog4j2.disable.jmx=true",
]
_OPENED = [
    "java.base/java.lang",
    "java.base/java.nio",
    "java.base/java.util.zip",
    "java.base/jdk.internal.misc",
    "java.base/jdk.internal.platform",
    "java.base/sun.net",
    "java.management/sun.management",
    "jdk.management/com.sun.management.internal",
]


def command(
    folder: Path,
    jars: Path,
    heap: str,
    main: str,
    *arguments: str,
    flags: Sequence[str] = (),
    more: Sequence[Path] = (),
) -> list[str]:
    """The command that runs a class of the jars, with its log configured in `folder`, which is made.

    `flags` are more of the JVM's, `more` are jars before those of the folder `jars`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    logging = folder / "log4j2.properties"
    logging.write_text(_LOGGING)
    java, class_path = find_java(), os.pathsep.join([*map(str, more), f"{jars}/*"])
    opened = [word for package in _OPENED for word in ("--add-opens", f"{package}=ALL-UNNAMED")]
    return [
        java,
        f"-Xms{heap}",
        f"-Xmx{heap}",
        f"-XX:MaxDirectMemorySize={heap}",
        *_FLAGS,
        *archive_options(jars),
        *flags,
        *_of_version(java_version(java)),
        *opened,
        f"-Dlog4j2.configurationFile={logging}",
        f"-Djava.io.tmpdir={folder}",
        "-cp",
        class_path,
        main,
        *arguments,
    ]


def write_properties(file: Path, properties: Mapping[str, object]) -> None:
    """A configuration; for its owner alone, as it may hold a key."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch(mode=0o600)
    file.write_text("".join(f"{name}={_text(value)}\n" for name, value in properties.items()))


def _of_version(version: int) -> list[str]:
    """Flags that later versions of Java need."""
    flags = ["--enable-native-access=ALL-UNNAMED"] if version >= 21 else []
    return [*flags, "--sun-misc-unsafe-memory-access=allow"] if version >= 23 else flags


def loopback() -> str:
    """The name of the loopback interface: the bookie would listen on all of them."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(interface.address == "127.0.0.1" for interface in addresses):
            return name
    raise SetupError("no network interface of this machine has the address 127.0.0.1: Pulsar needs one to listen on")


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


_LOGGING = """\
status = warn
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{ISO8601} %-5level [%t] %logger{36} - %msg %X%n%xEx{12}
rootLogger.level = info
rootLogger.appenderRef.out.ref = out
"""
