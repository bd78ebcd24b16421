"""Compile our Java sources with pyspark's Janino, because a JRE has no javac.

Stage: under `anabranch.local.setup`. Janino knows no lambdas, so the sources have none. A jar carries the digest of its
sources, so it is compiled again when they change.
"""

import hashlib
import os
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from anabranch.local.fetching import pyspark_jar
from runtime.java_home import SetupError, find_java


def is_current(jar: Path, sources: Path) -> bool:
    """Return True if the jar was compiled from the current sources in the folder."""
    try:
        with zipfile.ZipFile(jar) as archive:
            return archive.comment == source_digest(sources)
    except (OSError, zipfile.BadZipFile):
        return False


def source_digest(sources: Path) -> bytes:
    """Return the digest of all Java sources under a folder."""
    texts = (source.read_bytes() for source in sorted(sources.rglob("*.java")))
    return hashlib.sha256(b"".join(texts)).hexdigest().encode()


def compile_java(sources: Path, target: Path, class_path: Sequence[Path] = ()) -> None:
    """Compile a folder's sources into the jar `target`. Raises `SetupError`.

    They are compiled against `class_path`, or against pyspark's jars if it is empty.
    """
    from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
    from py4j.protocol import Py4JJavaError

    compiler_jars = [pyspark_jar("janino"), pyspark_jar("commons-compiler")]
    entries = [*compiler_jars, *class_path] if class_path else [pyspark_jar("janino").parent / "*"]
    port, token, process = launch_gateway(
        jarpath=str(pyspark_jar("py4j")),
        java_path=find_java(),
        die_on_exit=True,
        classpath=os.pathsep.join(map(str, entries)),
        redirect_stdout=None,
        redirect_stderr=None,
        enable_auth=True,
        return_proc=True,
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=token, auto_convert=True))
    try:
        with tempfile.TemporaryDirectory() as classes:
            file_class = gateway.jvm.java.io.File
            java_files = sorted(sources.rglob("*.java"))
            files = gateway.new_array(file_class, len(java_files))
            for number, source in enumerate(java_files):
                files[number] = file_class(str(source))
            compiler = gateway.jvm.org.codehaus.janino.CompilerFactory().newCompiler()
            compiler.setTargetVersion(8)
            compiler.setDestinationDirectory(file_class(classes), False)
            try:
                compiler.compile(files)
            except Py4JJavaError as error:
                raise SetupError(f"{sources} does not compile: {error.java_exception.getMessage()}") from None
            partial = target.with_suffix(".part")
            with zipfile.ZipFile(partial, "w") as archive:
                archive.comment = source_digest(sources)
                for file in sorted(Path(classes).rglob("*.class")):
                    archive.write(file, file.relative_to(classes))
            partial.rename(target)
    finally:
        gateway.shutdown()
        process.stdin.close()
        process.wait(20)
