"""Pictures by the programs in examples/: python docs/pictures/flow.py [NAME ...]; a flow takes 10 minutes."""

import sys
from importlib import import_module
from pathlib import Path

from PIL import Image

HERE = Path(__file__).parent
PICTURES = {  # name -> the program and its arguments
    "flow_cylinder": "body_flow cylinder --re 100 --grid fine --steps 2025",
    "flow_airfoil": "body_flow airfoil --re 1000 --alpha 10 --dt 0.02 --steps 800",
    "flow_sphere": "sphere_flow --re 100 --grid medium",
    "heat": "heat",
    "circuit": "circuit --width 120",
    "room": "room",
    "reservoir": "reservoir",
    "power_grid": "power_grid",
    "beam": "beam",
    "matting": "matting",
}


def smaller(path):
    """The picture with three quarters of its width, in 160 colours."""
    picture = Image.open(path).convert("RGB")
    size = tuple(side * 3 // 4 for side in picture.size)
    picture.resize(size, Image.Resampling.LANCZOS).quantize(160).save(path, optimize=True)


if __name__ == "__main__":
    sys.path.insert(0, str(HERE.parents[1] / "examples"))
    for name in sys.argv[1:] or PICTURES:
        path = HERE / f"{name}.png"
        program, *arguments = PICTURES[name].split()
        assert not import_module(program).main([*arguments, "--png", str(path)])
        smaller(path)
