"""Files of videos, and the frames that Pillow shows at every second.

    python videos.py FOLDER

Needs pillow and numpy; nothing of Narthex runs here. FOLDER gets `videos` (the files) and `videos.json` (the times of the
frames that are taken, in milliseconds, and some rows of their pixels).
"""

import json
import sys
from pathlib import Path

import numpy as np
from PIL import Image

WIDTH, HEIGHT = 36, 24
MOST = 32


def picture(index, count, drift=1):
    """A bright square that moves over a slope, whose blue changes too."""
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH]
    rgb = np.stack([x * 4, y * 6, (x + y) * 2 + index * drift], axis=-1).astype(np.uint8)
    left = (WIDTH - 8) * index // max(count - 1, 1)
    rgb[8:16, left : left + 8] = (250, 240 - index, index * 2)
    return Image.fromarray(rgb)


def with_alpha(index, count):
    image = picture(index, count).convert("RGBA")
    alpha = np.full((HEIGHT, WIDTH), 255, dtype=np.uint8)
    alpha[:6, : 6 + index] = 0
    image.putalpha(Image.fromarray(alpha))
    return image


def write(folder):
    """Writes the files. Encoders store only the part of a frame that has changed."""
    folder.mkdir(parents=True, exist_ok=True)

    def save(name, images, durations, **options):
        first, *rest = images
        first.save(folder / name, save_all=True, append_images=rest, duration=durations, **options)

    few = [picture(index, 6) for index in range(6)]
    durations = [400, 1700, 300, 600, 20, 980]
    save("parts.gif", [image.quantize(60, dither=Image.Dither.NONE) for image in few], durations)
    save("parts.png", few, durations)
    save("lossless.webp", few, durations, lossless=True)
    save("alpha.png", [with_alpha(index, 4) for index in range(4)], [1000, 500, 1500, 10])
    save("alpha.webp", [with_alpha(index, 4) for index in range(4)], [1000, 500, 1500, 70], lossless=True, exact=True)
    save("transparent.gif", [with_alpha(index, 4) for index in range(4)], [1000, 500, 1500, 70], disposal=2)
    still = [picture(index, 90, drift=0).quantize(16, dither=Image.Dither.NONE) for index in range(90)]
    save("long.gif", still, [1000] * 90)
    many = [picture(index, 90) for index in range(45)]
    save("fast.webp", many, [40] * 45, lossless=True)


def shown(file):
    """Returns the frames with the times at which they end."""
    frames, end = [], 0
    with Image.open(file) as image:
        for index in range(image.n_frames):
            image.seek(index)
            image.load()
            delay = int(image.info["duration"])
            end += 100 if delay <= 10 else delay
            white = Image.new("RGBA", image.size, (255, 255, 255, 255))
            white.alpha_composite(image.convert("RGBA"))
            frames.append((end, np.array(white.convert("RGB"))))
    return frames


def expected(file):
    frames = shown(file)
    interval, end = 1000, frames[-1][0]
    while -(-end // interval) > MOST:
        interval *= 2
    taken = []
    for time in range(0, end, interval):
        rgb = next(rgb for end, rgb in frames if time < end)
        taken.append({"time": time, "rows": {y: rgb[y].tobytes().hex() for y in (0, 5, 11, HEIGHT - 1)}})
    return taken


def main():
    folder = Path(sys.argv[1])
    write(folder / "videos")
    golden = {file.name: expected(file) for file in sorted((folder / "videos").iterdir())}
    (folder / "videos.json").write_text(json.dumps(golden))
    for name, taken in golden.items():
        print(name, (folder / "videos" / name).stat().st_size, len(taken))


main()
