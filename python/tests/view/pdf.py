"""As much of PDF as the browser writes when it prints a page: what is painted, and where."""

import re
import zlib

_NUMBER = re.compile(r"[-+]?\d*\.?\d+$")


def streams(pdf):
    """The contents of pages and of the forms on them, as text."""
    for header, body in re.findall(rb"<<((?:(?!endobj).)*?)>>\s*stream\r?\n(.*?)\r?\nendstream", pdf, re.S):
        text = zlib.decompressobj().decompress(body).decode("latin-1") if b"/FlateDecode" in header else ""
        if re.match(r"[\d.]+ 0 0 -[\d.]+ 0 [\d.]+ cm\s", text):  # what it begins them with
            yield text


def images(pdf):
    """The pictures as lists of (red, green, blue)."""
    for header, body in re.findall(rb"<<((?:(?!endobj).)*?)>>\s*stream\r?\n(.*?)\r?\nendstream", pdf, re.S):
        if b"/Subtype /Image" in header and b"/ICCBased" in header:
            pixels = zlib.decompressobj().decompress(body)
            yield list(zip(pixels[::3], pixels[1::3], pixels[2::3]))


def painted(text):
    """(left, right) of every path that a stream fills or strokes, in points."""
    matrix, stack, path, numbers = (1.0, 0.0), [], [], []
    for word in text.split():
        if _NUMBER.match(word):
            numbers.append(float(word))
            continue
        if word == "q":
            stack.append(matrix)
        elif word == "Q":
            matrix = stack.pop()
        elif word == "cm":  # the browser only scales and moves
            scale, shift = matrix
            matrix = scale * numbers[-6], scale * numbers[-2] + shift
        elif word == "re":
            path += [numbers[-4], numbers[-4] + numbers[-2]]
        elif word in ("m", "l", "c"):
            path += numbers[-6:][::2] if word == "c" else numbers[-2:-1]
        elif word in ("f", "f*", "S", "s", "B", "B*") and path:
            yield tuple(matrix[0] * x + matrix[1] for x in (min(path), max(path)))
        if word in ("f", "f*", "S", "s", "B", "B*", "n"):
            path = []
        numbers = []
