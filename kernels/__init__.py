# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-goodput project
"""GPU kernels, `<op>_{torch,triton}.py`: a reference beside each fast form. Imported as `vllm_goodput.kernels`."""
