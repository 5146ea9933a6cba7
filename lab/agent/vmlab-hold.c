// SPDX-License-Identifier: GPL-2.0
/*
 * vmlab-hold.c - keeps KVM from changing its own code while guests come and go.
 *
 * KVM skips checks by static keys as long as the APIC of every virtual CPU is
 * on, so each guest that boots or ends has the host's kernel rewrite functions
 * that other CPUs are executing. Emulated CPUs have hung in that (docs/lab.md,
 * "What emulation gets wrong"). One virtual CPU that never runs, with its APIC
 * off, keeps the keys as they are.
 *
 * usage: vmlab-hold DEVICE, which is /dev/kvm wherever that is.
 *
 * Ends at once with 0 when it holds one, which a child does until the machine
 * ends; with 1 and a message if KVM does not give it one.
 */
#include <fcntl.h>
#include <linux/kvm.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* IA32_APIC_BASE: the APIC is on. */
#define APIC_ENABLE	(1ULL << 11)

static const char *hold(const char *device)
{
	struct kvm_sregs registers;
	int kvm, machine, cpu;

	kvm = open(device, O_RDWR);
	if (kvm < 0)
		return device;
	machine = ioctl(kvm, KVM_CREATE_VM, 0);
	if (machine < 0)
		return "KVM_CREATE_VM";
	if (ioctl(machine, KVM_CREATE_IRQCHIP))
		return "KVM_CREATE_IRQCHIP";
	cpu = ioctl(machine, KVM_CREATE_VCPU, 0);
	if (cpu < 0)
		return "KVM_CREATE_VCPU";
	if (ioctl(cpu, KVM_GET_SREGS, &registers))
		return "KVM_GET_SREGS";
	registers.apic_base &= ~APIC_ENABLE;
	if (ioctl(cpu, KVM_SET_SREGS, &registers))
		return "KVM_SET_SREGS";
	return NULL;
}

int main(int argc, char **argv)
{
	const char *failed;
	int done[2];
	char one = 0;

	if (argc != 2) {
		fprintf(stderr, "usage: vmlab-hold DEVICE\n");
		return 1;
	}
	if (pipe(done)) {
		perror("vmlab-hold: pipe");
		return 1;
	}
	switch (fork()) {
	case -1:
		perror("vmlab-hold: fork");
		return 1;
	case 0:
		failed = hold(argv[1]);
		if (failed) {
			fprintf(stderr, "vmlab-hold: ");
			perror(failed);
			return 1;
		}
		/* Of its own: the session of who boots the machine is hung up. */
		setsid();
		if (write(done[1], &one, 1) != 1)
			return 1;
		close(done[0]);
		close(done[1]);
		close(0);
		close(1);
		close(2);
		for (;;)
			pause();
	}
	close(done[1]);
	return read(done[0], &one, 1) == 1 ? 0 : 1;
}
