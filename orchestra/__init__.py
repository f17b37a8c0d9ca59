"""The kernel: vocabulary, schedule, memory, backends and tape. It knows no paper, no tool and no
prompt.
"""
