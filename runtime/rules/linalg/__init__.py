"""Register linear algebra: products, factorizations, solutions, spectra, Fourier transforms.

They import ``derive``, ``samples`` and ``record``. Start with ``matmul``. Eigenvalues, singular
values and determinants are in ``spectral``. ``solve`` has linear systems, ``factored_solve`` those
whose matrix is factored already, ``least_squares`` those without an exact solution.
"""
