#!/usr/bin/env python3
"""Draw the program's icon: a round speech bubble that is also a clock, "what was said, and when".

usage: icon.py FOLDER      writes code-memory.ico (Windows), .icns (macOS) and .png

Every edge is a signed distance in a unit square, so each size is drawn for itself and no picture
needs to be kept in the repository.
"""

from __future__ import annotations

import functools
import math
import struct
import sys
import zlib
from pathlib import Path

TOP, BOTTOM = (0x6D, 0x5B, 0xD0), (0x2B, 0x36, 0x6B)  # the background's gradient
WHITE, INK = (0xFF, 0xFF, 0xFF), (0x2B, 0x36, 0x6B)

ICO_SIZES = (16, 20, 24, 32, 40, 48, 64, 256)
ICNS_SIZES = {b"ic07": 128, b"ic08": 256, b"ic09": 512}


def _rounded_square(x: float, y: float, half: float, radius: float) -> float:
    """Distance from a rounded square around the middle; negative inside."""
    dx, dy = abs(x - 0.5) - half + radius, abs(y - 0.5) - half + radius
    return math.hypot(max(dx, 0), max(dy, 0)) + min(max(dx, dy), 0) - radius


def _stroke(x: float, y: float, ax: float, ay: float, bx: float, by: float, width: float) -> float:
    """Distance from a line of round ends from (ax, ay) to (bx, by)."""
    px, py, vx, vy = x - ax, y - ay, bx - ax, by - ay
    along = max(0.0, min(1.0, (px * vx + py * vy) / (vx * vx + vy * vy)))
    return math.hypot(px - along * vx, py - along * vy) - width / 2


def _tail(x: float, y: float) -> float:
    """Distance from the bubble's tail: a triangle, lower left."""
    corners = ((0.26, 0.58), (0.48, 0.72), (0.23, 0.83))
    edges = zip(corners, corners[1:] + corners[:1], strict=True)
    return max(
        ((y - ay) * (bx - ax) - (x - ax) * (by - ay)) / -math.hypot(bx - ax, by - ay)
        for (ax, ay), (bx, by) in edges
    )


@functools.cache
def draw(size: int) -> bytes:
    """Return the icon as rows of RGBA pixels, top row first."""
    pixels = bytearray()
    for row in range(size):
        y = (row + 0.5) / size
        ground = [round(a + (b - a) * y) for a, b in zip(TOP, BOTTOM, strict=True)]
        for column in range(size):
            x = (column + 0.5) / size

            def cover(distance: float) -> float:  # 1 inside, 0 outside, between on the edge
                return max(0.0, min(1.0, 0.5 - distance * size))

            bubble = cover(min(math.hypot(x - 0.5, y - 0.47) - 0.31, _tail(x, y)))
            hands = cover(
                min(
                    _stroke(x, y, 0.5, 0.47, 0.5, 0.27, 0.066),
                    _stroke(x, y, 0.5, 0.47, 0.635, 0.55, 0.066),
                )
            )
            for channel in range(3):
                value = ground[channel] + (WHITE[channel] - ground[channel]) * bubble
                pixels.append(round(value + (INK[channel] - value) * hands))
            pixels.append(round(255 * cover(_rounded_square(x, y, 0.49, 0.2))))
    return bytes(pixels)


def encode_png(size: int, pixels: bytes) -> bytes:
    """Return RGBA pixels as a PNG file."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + check

    rows = b"".join(b"\0" + pixels[i : i + size * 4] for i in range(0, len(pixels), size * 4))
    header = struct.pack(">IIBBBBB", size, size, 8, 6, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(rows, 9))
        + chunk(b"IEND", b"")
    )


def _encode_dib(size: int, pixels: bytes) -> bytes:
    """Return RGBA pixels as the headless bitmap of an .ico entry: BGRA, bottom row first, and an
    empty transparency mask, which old readers want."""
    rows = [pixels[i : i + size * 4] for i in range(0, len(pixels), size * 4)]
    bgra = bytearray(b"".join(reversed(rows)))
    bgra[0::4], bgra[2::4] = bgra[2::4], bgra[0::4]
    header = struct.pack("<IiiHHIIiiII", 40, size, size * 2, 1, 32, 0, len(bgra), 0, 0, 0, 0)
    return header + bytes(bgra) + bytes((size + 31) // 32 * 4 * size)


def encode_ico() -> bytes:
    """Return an .ico of ICO_SIZES; only the largest is a PNG, as Windows itself does it."""
    images = []
    for size in ICO_SIZES:
        pixels = draw(size)
        images.append(encode_png(size, pixels) if size == 256 else _encode_dib(size, pixels))
    offset = 6 + 16 * len(images)
    directory = struct.pack("<HHH", 0, 1, len(images))
    for size, image in zip(ICO_SIZES, images, strict=True):
        side = size % 256  # 256 is written as 0
        directory += struct.pack("<BBBBHHII", side, side, 0, 0, 1, 32, len(image), offset)
        offset += len(image)
    return directory + b"".join(images)


def encode_icns() -> bytes:
    """Return an .icns of ICNS_SIZES: PNG files in a row, each with a four-letter name."""
    parts = b""
    for name, size in ICNS_SIZES.items():
        png = encode_png(size, draw(size))
        parts += name + struct.pack(">I", len(png) + 8) + png
    return b"icns" + struct.pack(">I", len(parts) + 8) + parts


def write_icons(folder: Path) -> None:
    """Write the three files into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "code-memory.ico").write_bytes(encode_ico())
    (folder / "code-memory.icns").write_bytes(encode_icns())
    (folder / "code-memory.png").write_bytes(encode_png(256, draw(256)))


if __name__ == "__main__":
    write_icons(Path(sys.argv[1]))
