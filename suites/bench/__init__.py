"""The benchmark tier: how long calls take, beside what the device can do."""
