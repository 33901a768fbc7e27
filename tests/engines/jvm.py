"""Commands that run Java programs, as short-lived processes that log to their standard output."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

# The scripts of Flink and Spark, which their packages lack, open these packages to them on Java 17.
OPENS = [
    f"--add-opens=java.base/{name}=ALL-UNNAMED"
    for name in (
        *(
            "java.lang",
            "java.lang.invoke",
            "java.lang.reflect",
            "java.io",
            "java.net",
            "java.nio",
            "java.text",
        ),
        *("java.time", "java.util", "java.util.concurrent", "java.util.concurrent.atomic"),
        *(
            "java.util.concurrent.locks",
            "sun.nio.ch",
            "sun.nio.cs",
            "sun.security.action",
            "sun.util.calendar",
        ),
    )
]

# The first compiler and the simple collector take the least CPU time in short-lived processes.
FRUGAL = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]

_LOG4J = """\
rootLogger.level = INFO
rootLogger.appenderRef.console.ref = Console
appender.console.type = CONSOLE
appender.console.name = Console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss,SSS} %-5p %c{1} - %m%n
"""


def java(
    main: str, *arguments: object, jars: Sequence[Path | str], flags: Sequence[str], folder: Path
) -> list[object]:
    """Returns a command.

    Args:
        main: The program's class.
        arguments: Its arguments.
        jars: Its class path.
        flags: Flags of the JVM, such as the limits of its memory.
        folder: Folder for its log configuration.
    """
    config = folder / "log4j2.properties"
    config.write_text(_LOG4J)
    logging = f"-Dlog4j.configurationFile=file:{config}"
    class_path = ":".join(map(str, jars))
    return ["java", *flags, *OPENS, *FRUGAL, logging, "-cp", class_path, main, *arguments]
