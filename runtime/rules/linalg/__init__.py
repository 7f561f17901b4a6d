"""Register linear algebra: products, factorizations, solutions, spectra, Fourier transforms.

They import ``derive``, ``samples`` and ``record``. Start with ``matmul``. Eigenvalues, singular
values and determinants are in ``spectral``.
"""
