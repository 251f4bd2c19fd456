"""Speed and memory against named rivals: ratios of medians, measured interleaved in one run."""
