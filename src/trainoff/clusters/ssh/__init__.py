"""The `hosts` cluster: `cluster` is this machine's side, `link` one connection; the guard on a host is conduct's."""
