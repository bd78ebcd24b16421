"""Safe display of foreign text, which may hold escape sequences and line breaks.

Names, properties and reasons, for example. Used wherever a log is written as text or a terminal is printed to.
"""


def printable(text: str) -> str:
    r"""Return `text` in one line, with everything invisible or special to a terminal escaped as `\\x1b`.

    That is every control and format character, including directions of writing (bidi), line breaks, and
    non-characters such as lone surrogates.
    """
    return text if text.isprintable() else "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
