"""Files of pictures, and what Pillow and the image processors of transformers make of them.

    python pictures.py FOLDER

Needs transformers, pillow and numpy; nothing of Narthex runs here. Pillow 13 resizes columns first if a
picture is much taller than its result; no case here is. FOLDER gets `fixtures` (the files), `decoded.json` (some
rows of each file's pixels), `processed.json` (values of the processors for generated pixels) and `read.json` (values of the
processors for each file).
"""

import json
import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps
from transformers.image_transforms import convert_to_rgb
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

WIDTH, HEIGHT = 44, 30


def pixels(width, height):
    """Slopes, an edge and noise. The tests generate the same bytes."""
    state = 1
    values = np.empty((height, width, 3), dtype=np.uint8)
    for y in range(height):
        for x in range(width):
            for channel in range(3):
                state = (state * 1664525 + 1013904223) % 2**32
                slope = (x * (channel + 2) + y * (5 - channel)) % 256
                edge = 90 if (x // 8 + y // 6) % 2 else 0
                values[y, x, channel] = min(slope // 2 + edge + (state >> 28), 255)
    return values


def smooth(width, height):
    """Pixels without noise, which lossy formats keep."""
    y, x = np.mgrid[0:height, 0:width]
    wave = lambda a, b, c: 127 + 100 * np.sin(a * x / width + b * y / height + c)
    return np.stack([wave(5, 1, 0), wave(1, 4, 1), wave(3, -3, 2)], axis=-1).astype(np.uint8)


def files(folder):
    folder.mkdir(parents=True, exist_ok=True)
    rgb = Image.fromarray(pixels(WIDTH, HEIGHT))
    soft = Image.fromarray(smooth(WIDTH, HEIGHT))
    grey = rgb.convert("L")
    alpha = Image.fromarray(np.array(rgb)[:, :, 0])
    save = lambda name, image, **options: image.save(folder / name, **options)

    save("rgb.png", rgb)
    save("grey.png", grey)
    save("bits.png", grey.convert("1"))
    save("palette.png", rgb.quantize(12))
    keyed = rgb.quantize(12)
    save("transparent.png", keyed, transparency=3)
    rgba = rgb.copy()
    rgba.putalpha(alpha)
    save("alpha.png", rgba)
    save("grey-alpha.png", Image.merge("LA", (grey, alpha)))
    deep = np.array(grey).astype(np.uint16) * 256 + np.arange(WIDTH, dtype=np.uint16)
    save("grey16.png", Image.fromarray(deep))
    (folder / "rgb16.png").write_bytes(png16(np.array(rgb)))
    exif = Image.Exif()
    exif[0x0112] = 8
    save("turned.png", rgb, exif=exif)

    save("plain.bmp", rgb)
    save("palette.bmp", rgb.quantize(12))
    save("first.gif", rgb.quantize(30), save_all=True, append_images=[soft.quantize(30)])
    save("transparent.gif", rgb.quantize(30), transparency=2)
    save("lossless.webp", rgb, lossless=True)
    save("alpha.webp", rgba, lossless=True, exact=True)
    save("animated.webp", rgb, lossless=True, save_all=True, append_images=[soft])
    save("lossy.webp", soft, quality=90)

    save("full.jpg", soft, quality=95, subsampling=0)
    save("progressive.jpg", soft, quality=90, subsampling=2, progressive=True)
    save("grey.jpg", soft.convert("L"), quality=90)
    save("cmyk.jpg", soft.convert("CMYK"), quality=95)
    exif[0x0112] = 6
    save("turned.jpg", soft, quality=95, subsampling=0, exif=exif)


def png16(values):
    """A PNG file with 16 bits for each sample, which Pillow does not write."""
    import struct
    import zlib

    deep = values.astype(np.uint32) * 256 + 200
    lines = b"".join(b"\0" + line.astype(">u2").tobytes() for line in deep.reshape(HEIGHT, -1))
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    header = struct.pack(">IIBBBBB", WIDTH, HEIGHT, 16, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(lines, 9)) + chunk(b"IEND", b"")


def opened(path):
    image = ImageOps.exif_transpose(Image.open(path))
    if image.mode == "I;16":
        # Pillow makes every grey above 255 white.
        image = Image.fromarray((np.array(image) >> 8).astype(np.uint8))
    return image


def decoded(path):
    array = convert_to_rgb(opened(path), return_numpy=True)
    height, width, _ = array.shape
    rows = {str(y): array[y].tobytes().hex() for y in (0, 1, height // 2, height - 1)}
    return {"width": width, "height": height, "rows": rows}


def generated(width, height, fit, side, longest=None):
    image = Image.fromarray(pixels(width, height))
    return {"width": width, "height": height} | processed(image, fit, side, longest)


def processed(image, fit, side, longest=None):
    if fit == "siglip":
        processor = SiglipImageProcessorPil(size={"height": side, "width": side})
    elif fit == "gemma3":
        processor = Gemma3ImageProcessorPil(size={"height": side, "width": side})
    else:
        processor = Idefics3ImageProcessorPil(size={"longest_edge": longest}, max_image_size={"longest_edge": side})
    options = {"return_row_col_info": True} if fit == "idefics3" else {}
    out = processor(image, return_tensors="np", **options)
    values = out["pixel_values"][0] if fit == "idefics3" else out["pixel_values"]
    rows, columns = (out["rows"][0][0], out["cols"][0][0]) if fit == "idefics3" else (0, 0)
    flat = values.astype(np.float32).reshape(-1)
    step = max(1, flat.size // 150)
    return {"fit": fit, "side": side, "longest": longest,
            "rows": rows, "columns": columns, "inputs": len(values), "step": step,
            "values": [round(float(value), 5) for value in flat[::step]]}


def main(out):
    files(out / "fixtures")
    found = {path.name: decoded(path) for path in sorted((out / "fixtures").iterdir())}
    (out / "decoded.json").write_text(json.dumps(found, indent=0) + "\n")
    cases = [generated(width, height, fit, 28) for fit in ("siglip", "gemma3")
             for width, height in ((61, 43), (28, 28), (90, 11), (300, 7))]
    cases += [generated(width, height, "idefics3", 16, 64)
              for width, height in ((61, 43), (43, 61), (200, 30), (90, 5), (64, 64))]
    cases.append(generated(16, 16, "idefics3", 16, 16))
    (out / "processed.json").write_text(json.dumps(cases) + "\n")
    read = [{"file": path.name} | processed(opened(path), *settings) for path in sorted((out / "fixtures").iterdir())
            for settings in (("gemma3", 28), ("idefics3", 16, 64))]
    (out / "read.json").write_text(json.dumps(read) + "\n")


main(Path(sys.argv[1]))
