"""Pictures of flows, by examples/body_flow.py: python docs/pictures/flow.py [NAME ...]; one takes 10 minutes."""

import sys
from pathlib import Path

from PIL import Image

HERE = Path(__file__).parent
PICTURES = {  # name -> the arguments of the example
    "flow_cylinder": "cylinder --re 100 --grid fine --steps 2025",
    "flow_airfoil": "airfoil --re 1000 --alpha 10 --dt 0.02 --steps 800",
}


def smaller(path):
    """The picture with three quarters of its width, in 160 colours."""
    picture = Image.open(path).convert("RGB")
    size = tuple(side * 3 // 4 for side in picture.size)
    picture.resize(size, Image.Resampling.LANCZOS).quantize(160).save(path, optimize=True)


if __name__ == "__main__":
    sys.path.insert(0, str(HERE.parents[1] / "examples"))
    from body_flow import main

    for name in sys.argv[1:] or PICTURES:
        path = HERE / f"{name}.png"
        assert main([*PICTURES[name].split(), "--png", str(path)]) == 0
        smaller(path)
