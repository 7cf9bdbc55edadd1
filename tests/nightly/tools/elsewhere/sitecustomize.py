"""Makes Python on Linux as bare as on Windows, for every process that has this folder in
PYTHONPATH.

Modules of repdyn find no module or name that Windows lacks; text files are cp1252 unless an
encoding is given, which repdyn must give; processes are spawned; and a file that is open is neither
deleted nor replaced.
"""

import builtins
import io
import locale
import multiprocessing
import os
import signal
import sys
import types
import warnings

ABSENT = {"fcntl", "grp", "posix", "pty", "pwd", "resource", "termios", "tty"}
WINDOWS_HAS = {"SIGABRT", "SIGFPE", "SIGILL", "SIGINT", "SIGSEGV", "SIGTERM", "SIG_DFL", "SIG_IGN"}
LACKING = {
    "os": (
        *(
            "fork",
            "geteuid",
            "getuid",
            "killpg",
            "mkfifo",
            "posix_fallocate",
            "register_at_fork",
            "sched_getaffinity",
        ),
        *(
            "setsid",
            "statvfs",
            "sysconf",
            "uname",
            "O_CLOEXEC",
            "O_DIRECTORY",
            "O_NOFOLLOW",
            "O_NONBLOCK",
            "WNOHANG",
        ),
    ),
    "signal": {name for name in dir(signal) if name.startswith("SIG")} - WINDOWS_HAS
    | {"alarm", "setitimer"},
}


class Bare(types.ModuleType):
    """A module without some of its names."""

    def __getattr__(self, name):
        if name in LACKING[self.__name__]:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r} on Windows")
        return getattr(sys.modules[self.__name__], name)


BARE = {name: Bare(name) for name in LACKING}
import_module, open_file = builtins.__import__, io.open


def bare_import(name, globals=None, locals=None, fromlist=(), level=0):
    if level == 0 and str((globals or {}).get("__name__")).partition(".")[0] == "repdyn":
        if name in ABSENT:
            raise ModuleNotFoundError(f"No module named {name!r} on Windows", name=name)
        if name in BARE:
            return BARE[name]
    return import_module(name, globals, locals, fromlist, level)


def open_as_cp1252(file, mode="r", buffering=-1, encoding=None, *arguments, **named):
    if "b" not in mode and io.text_encoding(encoding) == "locale":
        encoding = "cp1252"
    return open_file(file, mode, buffering, encoding, *arguments, **named)


def unless_open(function):
    def changed(*paths, **named):
        folder = f"/proc/self/fd/{named['dir_fd']}" if named.get("dir_fd") is not None else "."
        files = {os.path.realpath(os.path.join(folder, os.fspath(path))) for path in paths}
        opened = {os.path.realpath(f"/proc/self/fd/{each}") for each in os.listdir("/proc/self/fd")}
        with open_file("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            opened |= {line.split(maxsplit=5)[5].strip() for line in maps if "/" in line}
        if used := {file for file in files & opened if os.path.isfile(file)}:
            raise PermissionError(
                13, "The process cannot access the file because it is being used", used.pop()
            )
        return function(*paths, **named)

    return changed


builtins.__import__ = bare_import
builtins.open = io.open = open_as_cp1252
locale.getpreferredencoding = lambda do_setlocale=True: "cp1252"
os.replace, os.rename, os.unlink, os.remove = map(
    unless_open, (os.replace, os.rename, os.unlink, os.remove)
)
multiprocessing.set_start_method("spawn", force=True)
warnings.filterwarnings("ignore", category=EncodingWarning)
warnings.filterwarnings("error", category=EncodingWarning, module=r"repdyn(\.|$)")
