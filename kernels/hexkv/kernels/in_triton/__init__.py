"""Kernels for CUDA, in Triton (Tillet et al., MAPL 2019), one module for each task.

Nothing here is imported before the first tensor on a GPU: importing Triton takes a second. With
``TRITON_INTERPRET=1`` in the environment all of it runs on CPU tensors, slowly; that is how the
tests compare it with the code in torch and numpy.

Products and sums are never fused: numpy and torch round both, and levels must be the same.
"""
