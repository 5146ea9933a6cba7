// SPDX-License-Identifier: GPL-2.0
/*
 * path.c - the paths that are loaded, one for each kind of lane.
 *
 * Owns the list of paths. It changes under @path_mutex and the core mutex
 * both, so holding either is enough to read it. The order of all locks is in
 * vmloop.h.
 *
 * A channel carries frames from the moment it is up, so none begins before the
 * paths stand where the directory says that its frames come in.
 */
#include <linux/rtnetlink.h>
#include <net/net_namespace.h>

#include "core.h"

#define PATHS_MAX	VMLOOP_LANE_WINDOW	/* one for each kind that is not the core's own */

static const struct vmloop_path *paths[PATHS_MAX];
static DEFINE_MUTEX(path_mutex);
static bool told;	/* the paths know the directory; under the core mutex */
static unsigned long late;	/* kinds that came since they were told; the same */
static int window_paths;	/* that take windows; single word, written under the core mutex */

/**
 * vmloop_path_find() - the path that serves a kind of lane
 * @kind: VMLOOP_LANE_*
 *
 * Context: core mutex held.
 * Return: the path, or NULL.
 */
const struct vmloop_path *vmloop_path_find(u32 kind)
{
	lockdep_assert_held(&vmloop_mutex);
	if (kind == VMLOOP_LANE_WINDOW)
		return &vmloop_windows;
	return kind < PATHS_MAX ? paths[kind] : NULL;
}

/**
 * vmloop_paths_are_there() - whether channels would have any use
 *
 * Context: core mutex held.
 */
bool vmloop_paths_are_there(void)
{
	unsigned int i;

	lockdep_assert_held(&vmloop_mutex);
	for (i = 0; i < PATHS_MAX; i++)
		if (paths[i])
			return true;
	return false;
}

/**
 * vmloop_paths_features() - what all paths together understand
 *
 * Context: core mutex held.
 * Return: VMLOOP_F_*.
 */
u64 vmloop_paths_features(void)
{
	u64 features = 0;
	unsigned int i;

	lockdep_assert_held(&vmloop_mutex);
	for (i = 0; i < PATHS_MAX; i++)
		if (paths[i])
			features |= paths[i]->features;
	return features;
}

/**
 * vmloop_paths_have_windows() - whether a path that is loaded takes windows of peers
 *
 * Context: any; may change at any time. Transports are asked to say HELLO again then.
 */
bool vmloop_paths_have_windows(void)
{
	return READ_ONCE(window_paths);
}
EXPORT_SYMBOL_GPL(vmloop_paths_have_windows);

/*
 * One path that takes windows comes, or goes. The agent is told: it plugs no windows into a
 * guest that has no such path.
 */
static void count_windows(const struct vmloop_path *path, int more)
{
	struct vmloop_transport *transport;

	lockdep_assert_held(&vmloop_mutex);
	if (!path->window_wanted)
		return;
	WRITE_ONCE(window_paths, window_paths + more);
	list_for_each_entry(transport, &vmloop_transports, list)
		if (transport->ops->again)
			transport->ops->again(transport);
}

/**
 * vmloop_paths_channel_open() - a channel begins: let the paths open lanes
 * @channel: with a table of lanes, not READY yet
 *
 * Context: core mutex held, may sleep.
 */
void vmloop_paths_channel_open(struct vmloop_channel *channel)
{
	unsigned int i;

	lockdep_assert_held(&vmloop_mutex);
	for (i = 0; i < PATHS_MAX; i++)
		if (paths[i] && paths[i]->channel_open)
			paths[i]->channel_open(channel, channel->link->side,
					       false);
}

/* The channels that there are get lanes of paths that have been loaded since. */
static void open_late(void)
{
	struct vmloop_channel *channel;
	unsigned int i;

	for (i = 0; i < PATHS_MAX; i++) {
		if (!(late & BIT(i)) || !paths[i] || !paths[i]->channel_open)
			continue;
		channel = NULL;
		while ((channel = vmloop_channel_next(channel)))
			if (channel->slots &&
			    channel->state != VMLOOP_CHANNEL_CLOSING)
				paths[i]->channel_open(channel,
						       channel->link->side,
						       true);
	}
	late = 0;
}

/**
 * vmloop_paths_are_told() - whether the paths know the directory as it is
 *
 * If they do not, channels begin once they do: vmloop_channels_adopt().
 *
 * Context: core mutex held.
 */
bool vmloop_paths_are_told(void)
{
	lockdep_assert_held(&vmloop_mutex);
	return told;
}

static void changed_work(struct work_struct *work)
{
	unsigned int i;

	mutex_lock(&path_mutex);
	for (i = 0; i < PATHS_MAX; i++)
		if (paths[i] && paths[i]->directory_changed)
			paths[i]->directory_changed();
	mutex_lock(&vmloop_mutex);
	/* If it has changed again: who is in it now must not wait for ever. */
	told = true;
	open_late();
	vmloop_channels_adopt(NULL);
	told = !work_pending(work);
	mutex_unlock(&vmloop_mutex);
	mutex_unlock(&path_mutex);
}

static DECLARE_WORK(changed, changed_work);

/**
 * vmloop_paths_directory_changed() - tell the paths that the directory changed
 *
 * They are told later, from the core's workqueue; then channels begin.
 *
 * Context: core mutex held.
 */
void vmloop_paths_directory_changed(void)
{
	lockdep_assert_held(&vmloop_mutex);
	told = false;
	queue_work(vmloop_workqueue, &changed);
}

/**
 * vmloop_path_register() - a path is loaded
 * @path: stays until vmloop_path_unregister()
 *
 * Context: process context; takes the core mutex.
 * Return: 0; -EBUSY if that kind of lane has a path already; -EINVAL for a
 * kind that does not exist.
 */
int vmloop_path_register(const struct vmloop_path *path)
{
	int err = 0;

	if (path->kind == VMLOOP_LANE_NONE || path->kind >= PATHS_MAX)
		return -EINVAL;

	mutex_lock(&path_mutex);
	mutex_lock(&vmloop_mutex);
	if (paths[path->kind])
		err = -EBUSY;
	else
		paths[path->kind] = path;
	if (!err) {
		count_windows(path, 1);
		late |= BIT(path->kind);
		vmloop_paths_directory_changed();
	}
	mutex_unlock(&vmloop_mutex);
	mutex_unlock(&path_mutex);
	return err;
}
EXPORT_SYMBOL_GPL(vmloop_path_register);

/**
 * vmloop_path_unregister() - a path is about to be unloaded
 * @path: registered before
 *
 * Its lanes are drained and closed, and channels that have no use any more are
 * ended. After return none of its callbacks runs or will run.
 *
 * Context: process context; takes the core mutex; RTNL not held.
 */
void vmloop_path_unregister(const struct vmloop_path *path)
{
	mutex_lock(&path_mutex);
	mutex_lock(&vmloop_mutex);
	paths[path->kind] = NULL;
	count_windows(path, -1);
	vmloop_channels_end(path);
	mutex_unlock(&vmloop_mutex);
	mutex_unlock(&path_mutex);
}
EXPORT_SYMBOL_GPL(vmloop_path_unregister);

/* Shows lockdep the order of locks, so that it finds who has another one. */
void vmloop_path_init(void)
{
	if (!IS_ENABLED(CONFIG_LOCKDEP))
		return;
	mutex_lock(&path_mutex);
	rtnl_lock();
	down_read(&net_rwsem);
	mutex_lock(&vmloop_mutex);
	mutex_unlock(&vmloop_mutex);
	up_read(&net_rwsem);
	rtnl_unlock();
	mutex_unlock(&path_mutex);
}

void vmloop_path_exit(void)
{
	cancel_work_sync(&changed);
}
