// SPDX-License-Identifier: GPL-2.0
/*
 * main.c - starts the packet path in order, and ends it in the other.
 */
#include "net.h"

static int __init net_init(void)
{
	int err;

	err = net_nics_init();
	if (err)
		goto err_nics;
	err = vmloop_path_register(&net_path);
	if (err)
		goto err_path;
	err = net_large_init();
	if (err)
		goto err_large;
	return 0;

err_large:
	vmloop_path_unregister(&net_path);
err_path:
	net_nics_exit();
err_nics:
	net_named_exit();
	net_receivers_exit();
	return err;
}

static void __exit net_exit(void)
{
	/* First no more large datagrams, then no more frames, then no hooks. */
	net_large_exit();
	vmloop_path_unregister(&net_path);
	net_nics_exit();
	net_named_exit();
	net_receivers_exit();
}

module_init(net_init);
module_exit(net_exit);

MODULE_DESCRIPTION("Shared-memory networking between virtual machines: packet path");
MODULE_AUTHOR("The vmloop developers");
MODULE_VERSION(VMLOOP_VERSION);
MODULE_LICENSE("GPL");
