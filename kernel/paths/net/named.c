// SPDX-License-Identifier: GPL-2.0
/*
 * named.c - interfaces that the guest's administrator names, to be stood at
 * although they are no hardware: a bond, one end of a veth pair.
 *
 * The parameter "interfaces" is a list of names, separated by commas. They hold
 * in the network namespace of whoever writes them, and replace those that were
 * written from there before. So an administrator of the guest, and nobody who
 * has just a namespace of his own, says which interface gets a peer's frames.
 *
 * Owns the list of names, under RTNL.
 */
#include <linux/capability.h>
#include <linux/nsproxy.h>
#include <linux/rtnetlink.h>
#include <linux/slab.h>
#include <net/net_namespace.h>

#include "net.h"

#define NAMES_MAX	64

/**
 * struct named - one name
 * @list: in the list of all
 * @cookie: of the namespace where it holds; never used again for another
 * @name: the interface's
 */
struct named {
	struct list_head list;
	u64 cookie;
	char name[IFNAMSIZ];
};

static LIST_HEAD(names);
static bool ended;	/* the module goes: no more names */

/**
 * net_named() - whether the administrator names an interface
 * @dev: the interface
 *
 * Context: RTNL held.
 */
bool net_named(const struct net_device *dev)
{
	const struct named *named;

	ASSERT_RTNL();
	list_for_each_entry(named, &names, list)
		if (named->cookie == dev_net(dev)->net_cookie &&
		    !strcmp(named->name, dev->name))
			return true;
	return false;
}

static void names_free(struct list_head *list)
{
	struct named *named, *next;

	list_for_each_entry_safe(named, next, list, list)
		kfree(named);
}

/* Appends what @text says to @list. */
static int parse(const char *text, u64 cookie, struct list_head *list)
{
	struct named *named;
	unsigned int count;
	size_t size;

	for (count = 0; *text && *text != '\n'; count++) {
		size = strcspn(text, ",\n");
		if (!size || size >= IFNAMSIZ || count == NAMES_MAX)
			return -EINVAL;
		named = kzalloc(sizeof(*named), GFP_KERNEL);
		if (!named)
			return -ENOMEM;
		memcpy(named->name, text, size);
		named->cookie = cookie;
		list_add_tail(&named->list, list);
		text += size;
		if (*text == ',')
			text++;
	}
	return 0;
}

static int interfaces_set(const char *text, const struct kernel_param *param)
{
	u64 cookie = current->nsproxy->net_ns->net_cookie;
	struct named *named, *next;
	LIST_HEAD(old);
	LIST_HEAD(new);
	int err;

	if (!capable(CAP_NET_ADMIN))
		return -EPERM;
	err = parse(text, cookie, &new);
	if (err) {
		names_free(&new);
		return err;
	}

	rtnl_lock();
	list_for_each_entry_safe(named, next, &names, list)
		if (named->cookie == cookie)
			list_move(&named->list, &old);
	list_splice_tail(&new, ended ? &old : &names);
	net_nics_look();
	rtnl_unlock();
	names_free(&old);
	return 0;
}

static int interfaces_get(char *buffer, const struct kernel_param *param)
{
	u64 cookie = current->nsproxy->net_ns->net_cookie;
	const struct named *named;
	int size = 0;

	rtnl_lock();
	list_for_each_entry(named, &names, list)
		if (named->cookie == cookie)
			size += scnprintf(buffer + size, PAGE_SIZE - size,
					  "%s%s", size ? "," : "", named->name);
	rtnl_unlock();
	size += scnprintf(buffer + size, PAGE_SIZE - size, "\n");
	return size;
}

static const struct kernel_param_ops interfaces_ops = {
	.set = interfaces_set,
	.get = interfaces_get,
};

module_param_cb(interfaces, &interfaces_ops, NULL, 0644);
MODULE_PARM_DESC(interfaces, "interfaces to stand at besides the hardware's, in the writer's network namespace, separated by commas");

void net_named_exit(void)
{
	LIST_HEAD(old);

	rtnl_lock();
	ended = true;
	list_splice_init(&names, &old);
	rtnl_unlock();
	names_free(&old);
}
