"""Control flow by the value of a tensor: functions that are captured apart, and
operators that take them."""
