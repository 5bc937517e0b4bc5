"""A flow solver whose systems block ILU factors, like the paper's: grids, equations, pseudo time, programs."""
