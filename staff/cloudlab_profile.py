"""A CloudLab profile: four nodes in one LAN, with the addresses that the assignment names.

Paste it into CloudLab under "Create Experiment Profile" as a geni-lib script. Its request was
printed with geni-lib 0.9.9.4 (after 2to3, under Python 3.11); no experiment was started with it.
"""

import geni.portal as portal  # pyright: ignore[reportMissingImports]
import geni.rspec.pg as rspec  # pyright: ignore[reportMissingImports]

INSTALL = "sudo apt-get update && sudo apt-get install -y git make python3 python3-venv tmux"

context = portal.Context()
context.defineParameter("nodes", "Number of nodes", portal.ParameterType.INTEGER, 4)
context.defineParameter("hardware", "Hardware type (empty: any)", portal.ParameterType.NODETYPE, "")
context.defineParameter(
    "image",
    "Disk image",
    portal.ParameterType.IMAGE,
    "urn:publicid:IDN+emulab.net+image+emulab-ops//UBUNTU22-64-STD",
)
parameters = context.bindParameters()
request = context.makeRequestRSpec()
lan = request.LAN("lan")
for rank in range(parameters.nodes):
    node = request.RawPC("node%d" % rank)  # noqa: UP031  CloudLab may run it with an old Python
    node.disk_image = parameters.image
    if parameters.hardware:
        node.hardware_type = parameters.hardware
    interface = node.addInterface("eth1")
    interface.addAddress(rspec.IPv4Address("10.10.1.%d" % (rank + 1), "255.255.255.0"))  # noqa: UP031
    lan.addInterface(interface)
    node.addService(rspec.Execute(shell="bash", command=INSTALL))
context.printRequestRSpec(request)
